#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "identity.h"
#include "mailbox.h"
#include "shared_setup.h"

namespace orch_ccl {

using Clock = std::chrono::steady_clock;
using Millis = std::chrono::milliseconds;

// The arguments of a new group.
struct GroupSpec {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  Millis timeout{0}; // of setting up the group and of each operation
  std::string name;
  std::vector<int64_t> global_ranks; // group rank -> rank in the world
};

// A process group: its communicator, its members, and the store through which they exchange their state. Pending
// operations share it, so that it outlives the ProcessGroup object while they run. Its functions are thread-safe,
// except mailbox(), which is used under the engine's lock.
class Group {
 public:
  // Blocks until all ranks have called it. Throws DistBackendError when spec.timeout expires.
  explicit Group(GroupSpec spec);
  ~Group();
  Group(const Group&) = delete;

  int rank() const { return spec_.rank; }
  int size() const { return spec_.size; }
  bool has_one_rank() const { return spec_.size == 1; }
  const ccl::communicator& comm() const { return *comm_; }
  // Null if the ranks do not use shared memory.
  SharedExchanges* shared() const { return sharing_.exchanges.get(); }
  // With how many threads this rank moves data.
  int threads() const { return shared() ? shared()->threads() : 1; }
  // There are more ranks on this host than cores for them, so a waiting rank must not spin.
  bool oversubscribed() const { return sharing_.oversubscribed; }
  Millis timeout() const { return Millis(timeout_ms_.load()); }
  void set_timeout(Millis timeout) { timeout_ms_ = timeout.count(); }
  uint64_t next_sequence() { return ++sequence_; }
  uint64_t sequence() const { return sequence_; }
  uint64_t next_receive() { return ++receives_; }
  Mailbox& mailbox() { return *mailbox_; }

  std::string describe() const; // "group 'default_pg' (world ranks 0-3)"
  std::string name_ranks(const std::vector<int>& group_ranks) const; // "1, 3 (node2, pid 17)"
  const Identity& member(int rank) const { return members_[rank]; }
  bool on_one_host() const { return orch_ccl::on_one_host(members_); }

  // Null after release_store(); the state of the other members is unknown then.
  c10::intrusive_ptr<c10d::Store> store() const;
  // Called when the process group is destroyed, because the store may hold the rendezvous port.
  void release_store();

  // Marks the group as failed, permanently, because its members disagree on the next operation. When this returns, the
  // other ranks have stopped accessing this rank's tensors. Call it before the caller gets the error.
  void mark_broken(const std::string& reason);
  std::optional<std::string> broken() const;

 private:
  void exchange_identities(Clock::time_point deadline);
  std::string wait_for_key(const std::string& key, int rank, Clock::time_point deadline);
  void connect(Clock::time_point deadline);
  void warn_about_fallback() const;

  GroupSpec spec_;
  std::vector<Identity> members_;
  std::shared_ptr<ccl::communicator> comm_; // null for a group of one, which needs no network
  std::string comm_id_;
  Sharing sharing_;
  std::atomic<int64_t> timeout_ms_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> receives_{0};
  std::unique_ptr<Mailbox> mailbox_;
  mutable std::mutex mutex_; // guards store_ and broken_
  c10::intrusive_ptr<c10d::Store> store_; // a separate connection, because the user's may be blocked in a wait
  std::optional<std::string> broken_;
};

} // namespace orch_ccl
