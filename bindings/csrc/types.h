#pragma once

#include <string>

#include <ATen/ATen.h>
#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace orch_ccl {

// inout = inout <op> in, byte by byte.
using Fold = void (*)(const uint8_t* in, uint8_t* inout, size_t bytes);

// How one reduction of torch is carried out with what oneCCL has.
struct Reduction {
  ccl::datatype dtype;
  ccl::reduction op;
  // Set for bitwise operations, which oneCCL lacks (its user-defined ones are refused on the MPI
  // transport): everybody's data is gathered then, and folded here.
  Fold fold = nullptr;
  bool average = false; // the sum is divided by the group's size afterwards
  size_t parts = 1; // numbers in an element: a complex one has two
  const char* name = "";
  size_t bytes = 1; // of a number

  size_t count(const at::Tensor& tensor) const { return static_cast<size_t>(tensor.numel()) * parts; }
};

// Raises NotImplementedError (naming the alternative) for what neither oneCCL nor we can do.
Reduction reduction_for(const char* collective, const c10d::ReduceOp& op, at::ScalarType type);

// Divides a contiguous tensor in place; integers are truncated towards zero, as NCCL does.
void divide_in_place(at::Tensor& tensor, int64_t divisor);

[[noreturn]] void not_implemented(const std::string& message);

} // namespace orch_ccl
