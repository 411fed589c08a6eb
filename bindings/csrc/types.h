#pragma once

#include <string>

#include <ATen/ATen.h>
#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace orch_ccl {

// Reduces `bytes` bytes of each rank to `out`. Those of rank r begin at `first` + r * `stride`.
using Fold = void (*)(const uint8_t* first, size_t stride, int ranks, uint8_t* out, size_t bytes);

// How a reduction of torch is done with those of oneCCL.
struct Reduction {
  ccl::datatype dtype;
  ccl::reduction op;
  // Set for what oneCCL lacks (its MPI transport rejects user-defined reductions): bitwise operations, and averages of
  // integers, whose sum may not fit into the type. The data of all ranks is gathered, and every rank reduces it with
  // this function.
  Fold fold = nullptr;
  bool average = false; // the sum is divided by the group's size afterwards
  bool by_order = false; // the ranks reduce the integers of to_integers_of_same_order()
  size_t parts = 1; // numbers per element: two for complex types
  const char* name = ""; // of the ReduceOp, for messages
  size_t bytes = 1; // per number

  size_t count(const at::Tensor& tensor) const { return static_cast<size_t>(tensor.numel()) * parts; }
};

// Throws NotImplementedError, with an alternative, for an unsupported combination of operation and type.
Reduction reduction_for(const char* collective, const c10d::ReduceOp& op, at::ScalarType type);

// Returns the tensor itself, or, if `by_order`, a copy whose bits are those of integers of the same order, with NaN as
// the smallest or the largest. Comparisons with NaN are false, so without this the result would depend on their order,
// which in oneCCL differs from rank to rank.
at::Tensor to_integers_of_same_order(const Reduction& reduction, const at::Tensor& tensor);
// Converts the integers back in place.
void to_numbers(const Reduction& reduction, const at::Tensor& integers);

// Divides a contiguous tensor of a floating-point or complex type in place.
void divide_in_place(at::Tensor& tensor, int64_t divisor);

[[noreturn]] void not_implemented(const std::string& message);

} // namespace orch_ccl
