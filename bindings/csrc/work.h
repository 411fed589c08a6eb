#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "group.h"

namespace orch_ccl {

// Operations of one lane run one after the other, in the order they were called; lanes do not wait for
// each other. A group's collectives share a lane. Each direction to each peer has one of its own,
// because two ranks that both send before they receive must not block each other.
struct Lane {
  enum Kind { collective, sending, receiving };
  const Group* group;
  Kind kind;
  int peer;
  uint64_t number = 0; // of a receive: each has a lane, because a later one may be matched first
  bool operator<(const Lane& other) const {
    return std::tie(group, kind, peer, number) < std::tie(other.group, other.kind, other.peer, other.number);
  }
};

// One operation in three acts: start() hands it to oneCCL, which gives events; when they are done,
// finish() puts results where the caller wants them. In between next(), where there is one, is asked
// for more each time all events are done: it may start the next ones, or wait for something else, and
// returns true when there is no more. What the lambdas captured stays alive until the end.
struct Operation {
  std::string name;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  Lane::Kind lane = Lane::collective;
  int peer = kAnyPeer;
  std::function<void(Group&, Events&)> start;
  std::function<bool(Group&, Events&)> next;
  std::function<void()> finish;
  std::vector<at::Tensor> outputs;
  std::shared_ptr<int> source; // of a recv: where it came from
  Millis timeout{-1}; // negative: the group's
  bool async = true;
  // What the ranks must agree on, besides the name; and of an all_to_all, bytes to and from each.
  std::string call;
  std::vector<size_t> sent, received;
};

class CclWork final : public c10d::Work {
 public:
  CclWork(std::shared_ptr<Group> group, Operation operation);
  ~CclWork() override;

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override;
  std::vector<at::Tensor> result() override { return operation_.outputs; }
  // Made when it is first asked for, so that what has no future has no callbacks either.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override;
  int sourceRank() const override;

  // For the engine, under its lock.
  void start();
  bool test(bool keen);
  void finish_operation();
  void keep_buffers_forever();
  // For the engine, without its lock. True if there is a future to complete as well.
  bool complete(std::exception_ptr error);
  // Callbacks of the future run here and may call anything, and wait for it.
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

  // What the monitor, and nobody else, remembers of it. Here and not by its address, which the next one
  // may have.
  struct Watched {
    bool posted = false;
    Clock::time_point looked{};
  } watched;

 private:
  std::shared_ptr<Group> group_;
  // What the monitor reads, without a lock, never changes.
  const std::string name_;
  const Lane lane_;
  Operation operation_;
  Events events_;
  size_t tested_ = 0; // of them are done
  const uint64_t sequence_;
  std::atomic<bool> started_{false};
  const Millis timeout_;
  const Clock::time_point submitted_ = Clock::now();
  std::atomic<Clock::time_point> completed_at_{};
  std::mutex future_mutex_;
  bool over_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

using WorkPtr = c10::intrusive_ptr<CclWork>;

} // namespace orch_ccl
