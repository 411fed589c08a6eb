#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "group.h"

namespace orch_ccl {

using Events = std::vector<ccl::event>;

// Operations of one lane run one after the other, in the order they were called; lanes do not wait for
// each other. A group's collectives share a lane. Each direction to each peer has one of its own,
// because two ranks that both send before they receive must not block each other.
struct Lane {
  enum Kind { collective, sending, receiving };
  const Group* group;
  Kind kind;
  int peer;
  bool operator<(const Lane& other) const {
    return std::tie(group, kind, peer) < std::tie(other.group, other.kind, other.peer);
  }
};

// One operation in three acts: start() hands it to oneCCL, which gives events; when they are done,
// finish() puts results where the caller wants them. What the lambdas captured stays alive until then.
struct Operation {
  std::string name;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  Lane::Kind lane = Lane::collective;
  int peer = -1;
  std::function<void(const Group&, Events&)> start;
  std::function<void()> finish;
  std::vector<at::Tensor> outputs;
  Millis timeout{-1}; // negative: the group's
  bool async = true;
};

class CclWork final : public c10d::Work {
 public:
  CclWork(std::shared_ptr<Group> group, Operation operation);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override;
  std::vector<at::Tensor> result() override { return operation_.outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override;

  // For the engine, under its lock.
  void start();
  bool test();
  void finish_operation();
  void keep_buffers_forever();
  // For the engine, without its lock: callbacks of the future run here and may call anything.
  void complete(std::exception_ptr error);

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
  const uint64_t sequence_;
  std::atomic<bool> started_{false};
  const Millis timeout_;
  const Clock::time_point submitted_ = Clock::now();
  std::atomic<Clock::time_point> completed_at_{};
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

using WorkPtr = c10::intrusive_ptr<CclWork>;

} // namespace orch_ccl
