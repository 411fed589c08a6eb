#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "group.h"

namespace orch_ccl {

// Operations of one lane run one after the other, in the order of their calls; lanes do not wait for each other. A
// group's collectives share a lane. Each direction to each peer has a separate lane, because two ranks that both send
// before they receive must not block each other.
struct Lane {
  enum Kind { collective, sending, receiving };
  const Group* group;
  Kind kind;
  int peer;
  uint64_t number = 0; // of a receive: each has a separate lane, because a later one may be matched first
  bool operator<(const Lane& other) const {
    return std::tie(group, kind, peer, number) < std::tie(other.group, other.kind, other.peer, other.number);
  }
};

// What an operation does, in up to three phases. All are called under the engine's lock, by the thread that drives it:
//
// - start() passes the operation to oneCCL or to shared memory and collects the events to wait for;
// - next(), if set, is called each time all events have completed: it adds further events, or returns true when there
//   are no more. It may also return false without adding events, to be called again;
// - finish() copies the results to the caller's tensors.
//
// What the functions capture stays alive until the operation has completed.
struct Operation {
  std::string name;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  Lane::Kind lane = Lane::collective;
  int peer = kAnyPeer;
  std::function<void(Group&, Events&)> start;
  std::function<bool(Group&, Events&)> next;
  std::function<void()> finish;
  std::vector<at::Tensor> outputs;
  std::shared_ptr<int> source; // of a recv: the rank that sent the message
  Millis timeout{-1}; // negative: the timeout of the group
  bool async = true; // false: the caller waits right after the call
  // What the ranks must agree on besides the name; contains types and sizes only if ORCH_CCL_CHECK is set.
  std::string call;
  std::vector<size_t> sent, received; // of an all_to_all: bytes to and from each rank
};

// The handle of one operation, which torch returns to the caller.
class CclWork final : public c10d::Work {
 public:
  CclWork(std::shared_ptr<Group> group, Operation operation);
  ~CclWork() override;

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override;
  std::vector<at::Tensor> result() override { return operation_.outputs; }
  // The future is created by the first call, so that an operation without a future needs no callback thread.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override;
  int sourceRank() const override;

  // For the engine, under its lock: the phases of the operation.
  void start();
  bool test(bool may_spin);
  void finish_operation();
  void keep_buffers_forever();
  // For the engine, without its lock. Returns whether there is a future to complete as well.
  bool complete(std::exception_ptr error);
  // For a callback thread: runs the callbacks of the future, which may start other operations and wait for them.
  void complete_future();

  Lane lane() const { return lane_; }
  bool started() const { return started_; }
  bool async() const { return operation_.async; }
  Group& group() const { return *group_; }
  std::shared_ptr<Group> shared_group() const { return group_; }
  const std::string& name() const { return name_; }
  std::string describe() const; // "allreduce #12 of group ..."
  Clock::time_point submitted() const { return submitted_; }
  Millis timeout() const { return timeout_; }

  // Used by the monitor thread only. Stored here and not in a map by address, which a later operation may have, too.
  struct MonitorState {
    bool announced = false;
    Clock::time_point last_checked{};
  } monitor_state;

 private:
  std::shared_ptr<Group> group_;
  // The constant members are those that the monitor reads without a lock.
  const std::string name_;
  const Lane lane_;
  Operation operation_;
  Events events_;
  size_t tested_ = 0; // the first events_ that have completed
  const uint64_t sequence_;
  std::atomic<bool> started_{false};
  const bool inference_mode_ = c10::InferenceMode::is_enabled(); // of the caller, for the callbacks of the future
  const Millis timeout_;
  const Clock::time_point submitted_ = Clock::now();
  std::atomic<Clock::time_point> completed_at_{};
  std::mutex future_mutex_; // guards over_ and future_
  bool over_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

using WorkPtr = c10::intrusive_ptr<CclWork>;

} // namespace orch_ccl
