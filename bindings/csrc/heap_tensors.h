#pragma once

#include <ATen/ATen.h>

namespace orch_ccl {

// As at::empty, of one dimension, in this process's heap where that has room. Raises ValueError if it is not of the CPU.
at::Tensor empty_in_heap(int64_t elements, const at::TensorOptions& options);

} // namespace orch_ccl
