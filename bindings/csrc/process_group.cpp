#include "process_group.h"

#include "comparison.h"
#include "engine.h"
#include "fork_guard.h"
#include "groups.h"
#include "heap_tensors.h"

namespace orch_ccl {

namespace {

// In a forked child a group is never destroyed, because its communicator, its mappings and the threads of its store's
// server (for which their destructor would wait) exist only in the parent.
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

// The Group outlives this object while its operations are pending, because the destructor must not wait for a rank that
// may never respond.
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
  const bool is_cpu = device < 0;
  return is_cpu && group_ && group_->shared() && group_->shared()->has_heaps();
}

at::Tensor ProcessGroupCCL::allocateTensor(long elements, at::TensorOptions options) {
  TORCH_CHECK(
      supportsTensorAlloc(-1),
      "ccl: ", group().describe(),
      " has no shared memory for tensors. It needs ranks that are all on one host, and ORCH_CCL_SHARED_MEMORY must not "
      "be 0.");
  const auto tensor = empty_in_heap(elements, options);
  return tensor.is_complex() && ReducerAccess::has_real_buckets<> ? at::view_as_real(tensor).flatten() : tensor;
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
  // In a forked child the group's lock may be held forever.
  return in_forked_child() || group().broken() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

Handle ProcessGroupCCL::submit(Operation operation) {
  if (call_checks_enabled() && operation.lane == Lane::collective && !group().has_one_rank())
    operation = with_call_check(std::move(operation));
  group();
  auto work = c10::make_intrusive<CclWork>(group_, std::move(operation));
  Engine::get().submit(work);
  return work;
}

} // namespace orch_ccl
