#pragma once

#include <ATen/ATen.h>

namespace orch_ccl {

// Like at::empty, for one dimension, in this process's heap if that has enough free memory. Any thread may call it.
// Throws ValueError for other devices than the CPU.
at::Tensor empty_in_heap(int64_t elements, const at::TensorOptions& options);

} // namespace orch_ccl
