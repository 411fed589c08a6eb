#pragma once

#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "event.h"

namespace orch_ccl {

class Group;

constexpr int kAnyPeer = -1;

// The ranks do not want the same.
struct Disagreement : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What goes before the data of every message, because oneCCL knows neither tags nor sizes and matches
// what one rank sends to another by its order alone.
struct Envelope {
  int64_t tag = 0;
  uint64_t bytes = 0;
};

// A recv that waits for its message.
struct Receive {
  int source; // or kAnyPeer
  int tag;
  at::Tensor data; // contiguous
  int from = -1; // the rank it came from, once it is there
  std::string trouble;
};

// The messages that come to this rank in one group. They are read in the order in which their sender
// sent them; what nobody has asked for yet is kept until somebody does. Used under the engine's lock.
class Mailbox {
 public:
  explicit Mailbox(int ranks) : senders_(ranks) {}

  void post(const std::shared_ptr<Receive>& receive);
  // Reads on. True once this one has its message; raises Disagreement if that has another size.
  bool arrived(const Group& group, const Receive& receive);
  // False if a message is being read, which would meet the next user of this communicator.
  bool idle() const;

 private:
  struct Message {
    int64_t tag;
    at::Tensor data; // bytes
  };
  struct Sender {
    enum { nothing, envelope, data } reading = nothing;
    std::unique_ptr<Envelope> head = std::make_unique<Envelope>();
    Events events;
    size_t read = 0; // bytes of the data
    at::Tensor arriving;
    std::shared_ptr<Receive> receiver; // null: nobody has asked for it yet
    std::deque<Message> kept;
  };
  void read_from(const Group& group, int rank);
  void match_kept(const Group& group, int rank);
  void open(const Group& group, int rank);
  bool read_more(const Group& group, int rank);
  void hand_over(int rank);
  bool wanted(int rank) const;
  std::shared_ptr<Receive> take_receiver(int rank, int64_t tag);

  std::vector<Sender> senders_;
  std::deque<std::shared_ptr<Receive>> waiting_; // in the order of their calls
};

} // namespace orch_ccl
