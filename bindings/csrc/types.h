#pragma once

#include <string>

#include <ATen/ATen.h>
#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace orch_ccl {

// Computes inout = inout <op> in, byte by byte.
using Fold = void (*)(const uint8_t* in, uint8_t* inout, size_t bytes);

// How a reduction of torch is done with those of oneCCL.
struct Reduction {
  ccl::datatype dtype;
  ccl::reduction op;
  // Set for bitwise operations, which oneCCL lacks (its MPI transport rejects user-defined reductions): the data of all
  // ranks is gathered, and every rank reduces it with this function.
  Fold fold = nullptr;
  bool average = false; // the sum is divided by the group's size afterwards
  size_t parts = 1; // numbers per element: two for complex types
  const char* name = ""; // of the ReduceOp, for messages
  size_t bytes = 1; // per number

  size_t count(const at::Tensor& tensor) const { return static_cast<size_t>(tensor.numel()) * parts; }
};

// Throws NotImplementedError, with an alternative, for an unsupported combination of operation and type.
Reduction reduction_for(const char* collective, const c10d::ReduceOp& op, at::ScalarType type);

// Divides a contiguous tensor in place. Integer results are truncated towards zero, as in NCCL.
void divide_in_place(at::Tensor& tensor, int64_t divisor);

[[noreturn]] void not_implemented(const std::string& message);

} // namespace orch_ccl
