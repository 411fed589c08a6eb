#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "build_info.h"
#include "communicators.h"
#include "engine.h"
#include "fork_guard.h"
#include "last_callbacks.h"
#include "process_exit.h"
#include "process_group.h"
#include "settings.h"

namespace {

using orch_ccl::GroupSpec;
using orch_ccl::Millis;

constexpr auto kMaxPendingWait = Millis(5000); // for operations that are pending when the interpreter exits

c10::intrusive_ptr<orch_ccl::ProcessGroupCCL> create(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::duration<float> timeout,
    std::string name,
    std::vector<int64_t> global_ranks) {
  orch_ccl::install_fork_guard();
  orch_ccl::require_parent_process();
  GroupSpec spec;
  spec.store = store;
  spec.rank = rank;
  spec.size = size;
  spec.timeout = std::chrono::duration_cast<Millis>(timeout);
  spec.name = std::move(name);
  spec.global_ranks = std::move(global_ranks);
  return c10::make_intrusive<orch_ccl::ProcessGroupCCL>(std::move(spec));
}

using ProcessGroupClass = py::class_<orch_ccl::ProcessGroupCCL, c10::intrusive_ptr<orch_ccl::ProcessGroupCCL>>;

c10::intrusive_ptr<orch_ccl::ProcessGroupCCL> construct(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::duration<float> timeout) {
  return create(store, rank, size, timeout, "unnamed", {});
}

// Called by Python's atexit, on the main thread, without the GIL.
void before_interpreter_ends() {
  if (orch_ccl::in_forked_child() || !orch_ccl::transport_started())
    return;
  orch_ccl::Engine::get().close(kMaxPendingWait);
  orch_ccl::wait_for_last_callbacks();
  orch_ccl::run_exit_handler_first();
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.attr("version") = orch_ccl::BUILT_VERSION;
  ProcessGroupClass(module, "ProcessGroupCCL", py::module_::import("torch._C._distributed_c10d").attr("Backend"))
      .def(
          py::init(&construct), py::arg("store"), py::arg("rank"), py::arg("size"),
          py::arg("timeout") = std::chrono::minutes(30), py::call_guard<py::gil_scoped_release>())
      .def("_set_default_timeout", &orch_ccl::ProcessGroupCCL::setTimeout, py::arg("timeout"));
  module.def("create", &create, py::call_guard<py::gil_scoped_release>());
  module.def("expect_settings", &orch_ccl::expect_settings);
  module.def("before_interpreter_ends", &before_interpreter_ends, py::call_guard<py::gil_scoped_release>());
}
