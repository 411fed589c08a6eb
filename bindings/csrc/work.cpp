#include "work.h"

#include <ATen/core/grad_mode.h>

#include "engine.h"
#include "fork_guard.h"

namespace orch_ccl {

CclWork::CclWork(std::shared_ptr<Group> group, Operation operation)
    : Work(group->rank(), operation.type),
      group_(std::move(group)),
      name_(operation.name),
      lane_{group_.get(), operation.lane, operation.peer},
      operation_(std::move(operation)),
      sequence_(operation_.lane == Lane::collective ? group_->next_sequence() : group_->sequence()),
      timeout_(operation_.timeout.count() < 0 ? group_->timeout() : operation_.timeout),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

std::string CclWork::describe() const {
  std::string what = name_;
  if (lane_.kind == Lane::collective)
    what += " #" + std::to_string(sequence_);
  else
    what += (lane_.kind == Lane::sending ? " to " : " from ") + group_->name_ranks({lane_.peer});
  return what + " of " + group_->describe();
}

void CclWork::start() {
  started_ = true;
  operation_.start(*group_, events_);
}

bool CclWork::test() {
  while (!events_.empty()) {
    if (!events_.back().test())
      return false;
    events_.pop_back();
  }
  return true;
}

void CclWork::finish_operation() {
  if (!operation_.finish)
    return;
  at::NoGradGuard no_grad; // results are often copied into parameters and gradients
  operation_.finish();
}

// The transport may still write into the buffers of an operation that we gave up.
void CclWork::keep_buffers_forever() {
  static auto* graveyard = new std::vector<std::pair<Operation, Events>>;
  graveyard->emplace_back(operation_, std::move(events_)); // a caller may be reading result()
  events_.clear();
}

void CclWork::complete(std::exception_ptr error) {
  completed_at_ = Clock::now();
  auto outputs = operation_.outputs;
  // Inputs are not needed any more; a Work object that the caller keeps should not keep them.
  operation_.start = nullptr;
  operation_.finish = nullptr;
  finish(error);
  if (error)
    future_->setErrorIfNeeded(error);
  else
    future_->markCompleted(c10::IValue(std::move(outputs)));
}

bool CclWork::wait(std::chrono::milliseconds timeout) {
  require_parent_process();
  if (!isCompleted() && !Engine::get().drive(*this, timeout)) {
    C10_THROW_ERROR(
        DistBackendError,
        "ccl: " + describe() + " has not completed within the " + std::to_string(timeout.count()) +
            " ms of this wait(); it goes on, and may be waited for again.");
  }
  std::exception_ptr error = exception();
  if (error)
    std::rethrow_exception(error);
  return true;
}

void CclWork::abort() {
  Engine::get().fail_group(*group_, "aborted by the caller");
}

float CclWork::getDuration() const {
  return std::chrono::duration<float, std::milli>(completed_at_.load() - submitted_).count();
}

} // namespace orch_ccl
