#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "errors.h"
#include "event.h"

namespace orch_ccl {

class Group;

constexpr int kAnyPeer = -1;

// Precedes the data of every message, because oneCCL has neither tags nor sizes and matches the messages between two
// ranks by their order.
struct Envelope {
  int64_t tag = 0;
  uint64_t bytes = 0;
};

// A recv that has not completed.
struct Receive {
  int source; // the rank to receive from, or kAnyPeer
  int tag;
  at::Tensor data; // contiguous
  int sender = -1; // the rank that sent the message, once it has arrived
  std::string error; // why the message does not fit, or empty
};

// Receives the messages to this rank in one group. Messages are read in the order in which their sender sent them;
// those without a matching recv are stored until one is posted (MPI's "unexpected messages"). Used under the engine's
// lock.
class Mailbox {
 public:
  explicit Mailbox(int ranks) : senders_(ranks) {}

  void post(const std::shared_ptr<Receive>& receive);
  // Continues to read. Returns true once `receive` has its message. Throws SizeMismatch if that has another size.
  bool test_receive(const Group& group, const Receive& receive);
  // False while a message is being read, which the next user of this communicator would receive.
  bool idle() const;

 private:
  struct Message {
    int64_t tag;
    at::Tensor data; // bytes
  };
  struct Sender {
    enum { nothing, envelope, data } reading = nothing;
    std::unique_ptr<Envelope> header = std::make_unique<Envelope>();
    Events events;
    size_t read = 0; // bytes of the data that were requested
    at::Tensor buffer; // of the receiver, or a new one
    std::shared_ptr<Receive> receiver; // null: no matching recv has been posted
    std::deque<Message> unexpected;
  };
  void read_from(const Group& group, int rank);
  void match_unexpected(const Group& group, int rank);
  void start_data(const Group& group, int rank);
  bool read_data(const Group& group, int rank);
  void deliver(int rank);
  bool has_posted_receive(int rank) const;
  std::shared_ptr<Receive> take_matching_receive(int rank, int64_t tag);

  std::vector<Sender> senders_;
  std::deque<std::shared_ptr<Receive>> posted_; // in the order of their calls
};

} // namespace orch_ccl
