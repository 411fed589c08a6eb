#include "process_group.h"

#include "comparison.h"
#include "engine.h"
#include "fork_guard.h"
#include "groups.h"
#include "heap_tensors.h"

namespace orch_ccl {

namespace {

// In a forked child a group is never destroyed, whoever drops it last: its communicator, its mappings and the threads
// of its store's server (which their destructor would wait for) exist in the parent alone.
std::shared_ptr<Group> make_group(GroupSpec spec) {
  return {new Group(std::move(spec)), [](Group* group) {
            if (!in_forked_child())
              delete group;
          }};
}

} // namespace

ProcessGroupCCL::ProcessGroupCCL(GroupSpec spec)
    : Backend(spec.rank, spec.size), group_(make_group(std::move(spec))) {
  install_fork_guard();
  register_group(group_);
  init();
}

// The group itself lives on while operations of it are in flight: destroying must not wait for a rank
// that may never come.
ProcessGroupCCL::~ProcessGroupCCL() {
  shutdown();
}

void ProcessGroupCCL::shutdown() {
  if (!group_ || in_forked_child())
    return;
  group_->release_store();
  group_.reset();
}

void ProcessGroupCCL::abort() {
  if (group_)
    Engine::get().fail_group(*group_, "aborted");
}

bool ProcessGroupCCL::supportsTensorAlloc(c10::DeviceIndex device) {
  const bool of_cpu = device < 0;
  return of_cpu && group_ && group_->shared() && group_->shared()->has_heaps();
}

at::Tensor ProcessGroupCCL::allocateTensor(long elements, at::TensorOptions options) {
  TORCH_CHECK(
      supportsTensorAlloc(-1),
      "ccl: ", group().describe(), " has no memory in common. Only ranks of one host have, unless ORCH_CCL_SHARED_MEMORY is 0.");
  return empty_in_heap(elements, options);
}

Group& ProcessGroupCCL::group() const {
  TORCH_CHECK(group_, "ccl: this process group was destroyed");
  return *group_;
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupCCL::getBackendOptions() {
  return c10::make_intrusive<Options>("ccl", group().timeout());
}

void ProcessGroupCCL::setTimeout(std::chrono::milliseconds timeout) {
  group().set_timeout(timeout);
}

c10d::ErrorType ProcessGroupCCL::getError() {
  // In a forked child a lock of the group may be held for ever.
  return in_forked_child() || group().broken() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

Handle ProcessGroupCCL::submit(Operation operation) {
  if (comparing() && operation.lane == Lane::collective && !group().alone())
    operation = compared(std::move(operation));
  group();
  auto work = c10::make_intrusive<CclWork>(group_, std::move(operation));
  Engine::get().submit(work);
  return work;
}

} // namespace orch_ccl
