#include "work.h"

#include <c10/core/InferenceMode.h>

#include "engine.h"
#include "fork_guard.h"

namespace orch_ccl {

CclWork::CclWork(std::shared_ptr<Group> group, Operation operation)
    : Work(group->rank(), operation.type),
      group_(std::move(group)),
      name_(operation.name),
      lane_{
          group_.get(),
          operation.lane,
          operation.peer,
          operation.lane == Lane::receiving ? group_->next_receive() : 0},
      operation_(std::move(operation)),
      sequence_(operation_.lane == Lane::collective ? group_->next_sequence() : group_->sequence()),
      timeout_(operation_.timeout.count() < 0 ? group_->timeout() : operation_.timeout) {}

// The destructor of an event of oneCCL waits for it, which never ends in a forked child. Leak the events there.
CclWork::~CclWork() {
  if (in_forked_child())
    new Events(std::move(events_));
}

std::string CclWork::describe() const {
  std::string what = name_;
  if (lane_.kind == Lane::collective)
    what += " #" + std::to_string(sequence_);
  else
    what += (lane_.kind == Lane::sending ? " to " : " from ") +
        (lane_.peer == kAnyPeer ? "any rank" : group_->name_ranks({lane_.peer}));
  return what + " of " + group_->describe();
}

void CclWork::start() {
  started_ = true;
  operation_.start(*group_, events_);
}

bool CclWork::test(bool may_spin) {
  for (;;) {
    for (; tested_ < events_.size(); ++tested_)
      if (!events_[tested_].test(may_spin))
        return false;
    events_.clear();
    tested_ = 0;
    if (!operation_.next || operation_.next(*group_, events_))
      return true;
    if (events_.empty())
      return false;
  }
}

void CclWork::finish_operation() {
  if (!operation_.finish)
    return;
  // The tensors may be parameters, or inference tensors of another thread, which only this mode may change.
  const c10::InferenceMode inference_mode;
  operation_.finish();
}

// The transport may still write to the buffers of an abandoned operation.
void CclWork::keep_buffers_forever() {
  static auto* abandoned = new std::vector<std::pair<Operation, Events>>;
  abandoned->emplace_back(operation_, std::move(events_)); // a copy: a caller may be reading result()
  events_.clear();
}

bool CclWork::complete(std::exception_ptr error) {
  completed_at_ = Clock::now();
  // A Work object that the caller keeps must not keep the inputs alive.
  operation_.start = nullptr;
  operation_.next = nullptr;
  operation_.finish = nullptr;
  finish(error);
  std::lock_guard<std::mutex> lock(future_mutex_);
  over_ = true;
  return future_ != nullptr;
}

void CclWork::complete_future() {
  const c10::InferenceMode mode_of_caller(inference_mode_);
  if (const auto error = exception())
    future_->setErrorIfNeeded(error);
  else
    future_->markCompleted(c10::IValue(operation_.outputs));
}

c10::intrusive_ptr<c10::ivalue::Future> CclWork::getFuture() {
  std::lock_guard<std::mutex> lock(future_mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (over_)
      complete_future();
  }
  return future_;
}

bool CclWork::wait(std::chrono::milliseconds timeout) {
  require_parent_process();
  if (!isCompleted() && !Engine::get().drive(*this, timeout)) {
    C10_THROW_ERROR(
        DistBackendError,
        "ccl: " + describe() + " has not completed within the " + std::to_string(timeout.count()) +
            " ms of this wait(). The operation continues; call wait() again to wait longer.");
  }
  std::exception_ptr error = exception();
  if (error)
    std::rethrow_exception(error);
  return true;
}

void CclWork::abort() {
  Engine::get().fail_group(*group_, "aborted by the caller");
}

int CclWork::sourceRank() const {
  return operation_.source ? *operation_.source : Work::sourceRank();
}

float CclWork::getDuration() const {
  return std::chrono::duration<float, std::milli>(completed_at_.load() - submitted_).count();
}

} // namespace orch_ccl
