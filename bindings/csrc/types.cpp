#include "types.h"

#include <cstring>
#include <functional>
#include <optional>

namespace orch_ccl {
namespace {

using Op = c10d::ReduceOp::RedOpType;

std::optional<ccl::datatype> arithmetic_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return ccl::datatype::float32;
    case at::kDouble: return ccl::datatype::float64;
    case at::kBFloat16: return ccl::datatype::bfloat16;
    case at::kHalf: return ccl::datatype::float16;
    case at::kChar: return ccl::datatype::int8;
    case at::kByte: return ccl::datatype::uint8;
    case at::kShort: return ccl::datatype::int16;
    case at::kInt: return ccl::datatype::int32;
    case at::kLong: return ccl::datatype::int64;
    default: return std::nullopt;
  }
}

// Bitwise operations do not depend on the width of an element, so this works for all integer types.
template <typename BitOperation>
void fold_bytes(const uint8_t* first, size_t stride, int ranks, uint8_t* out, size_t bytes) {
  std::memcpy(out, first, bytes);
  for (int rank = 1; rank < ranks; ++rank)
    for (size_t i = 0; i < bytes; ++i)
      out[i] = static_cast<uint8_t>(BitOperation()(out[i], first[rank * stride + i]));
}

// The sum of 2^31 integers of 64 bits fits into 128 bits. The mean is truncated towards zero, as in NCCL.
template <typename T>
void average_integers(const uint8_t* first, size_t stride, int ranks, uint8_t* out, size_t bytes) {
  for (size_t at = 0; at < bytes; at += sizeof(T)) {
    __int128 sum = 0;
    T value;
    for (int rank = 0; rank < ranks; ++rank) {
      std::memcpy(&value, first + rank * stride + at, sizeof(T));
      sum += value;
    }
    value = static_cast<T>(sum / ranks);
    std::memcpy(out + at, &value, sizeof(T));
  }
}

Fold integer_average(at::ScalarType type) {
  switch (type) {
    case at::kChar: return average_integers<int8_t>;
    case at::kByte: return average_integers<uint8_t>;
    case at::kShort: return average_integers<int16_t>;
    case at::kInt: return average_integers<int32_t>;
    case at::kLong: return average_integers<int64_t>;
    default: return nullptr;
  }
}

std::optional<Reduction> bitwise_reduction(Op op, ccl::datatype dtype) {
  switch (op) {
    case Op::BAND: return Reduction{dtype, ccl::reduction::none, fold_bytes<std::bit_and<>>};
    case Op::BOR: return Reduction{dtype, ccl::reduction::none, fold_bytes<std::bit_or<>>};
    case Op::BXOR: return Reduction{dtype, ccl::reduction::none, fold_bytes<std::bit_xor<>>};
    default: return std::nullopt;
  }
}

// torch's bool is a byte with value 0 or 1, so "or" is the maximum and "and" the minimum.
Reduction bool_reduction(const char* collective, Op op) {
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR: return {ccl::datatype::uint8, ccl::reduction::max};
    case Op::PRODUCT:
    case Op::MIN:
    case Op::BAND: return {ccl::datatype::uint8, ccl::reduction::min};
    case Op::BXOR: return {ccl::datatype::uint8, ccl::reduction::none, fold_bytes<std::bit_xor<>>};
    default:
      not_implemented(
          std::string(collective) + " of bool tensors with this ReduceOp: convert to uint8 or float first");
  }
}

at::ScalarType integer_type(size_t bytes) {
  return bytes == 2 ? at::kShort : bytes == 4 ? at::kInt : at::kLong;
}

int64_t largest_integer(size_t bytes) {
  return INT64_MAX >> (64 - 8 * bytes);
}

// The bits of a floating-point number are those of a sign and magnitude. Flipping the magnitude of negative numbers
// gives an integer of the same order, and flipping it again gives the number.
void flip_negative(at::Tensor bits) {
  const auto largest = largest_integer(bits.element_size());
  bits.bitwise_xor_(bits.lt(0).to(bits.scalar_type()).mul_(largest));
}

template <typename T>
void divide(at::Tensor& tensor, int64_t divisor) {
  T* values = tensor.data_ptr<T>();
  using Wide = std::conditional_t<std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>, float, T>;
  const Wide divisor_value = static_cast<Wide>(divisor);
  for (int64_t i = 0, n = tensor.numel(); i < n; ++i)
    values[i] = static_cast<T>(static_cast<Wide>(values[i]) / divisor_value);
}

const char* name_of_op(Op op) {
  switch (op) {
    case Op::SUM: return "SUM";
    case Op::AVG: return "AVG";
    case Op::PRODUCT: return "PRODUCT";
    case Op::MIN: return "MIN";
    case Op::MAX: return "MAX";
    case Op::BAND: return "BAND";
    case Op::BOR: return "BOR";
    case Op::BXOR: return "BXOR";
    default: return "?";
  }
}

Reduction make_reduction(const char* collective, Op kind, at::ScalarType type) {
  if (type == at::kBool)
    return bool_reduction(collective, kind);
  if (c10::isComplexType(type) && (kind == Op::SUM || kind == Op::AVG)) {
    auto reduction = make_reduction(collective, kind, c10::toRealValueType(type));
    reduction.parts = 2;
    return reduction;
  }
  const auto dtype = arithmetic_type(type);
  if (!dtype)
    not_implemented(
        std::string(collective) + " cannot reduce " + std::string(c10::toString(type)) +
        " tensors: convert them to float32 first, or use a gloo group (new_group(backend='gloo'))");
  switch (kind) {
    case Op::SUM: return {*dtype, ccl::reduction::sum};
    case Op::AVG:
      if (const auto fold = integer_average(type))
        return {*dtype, ccl::reduction::none, fold};
      return {*dtype, ccl::reduction::sum, nullptr, true};
    case Op::PRODUCT: return {*dtype, ccl::reduction::prod};
    case Op::MIN:
    case Op::MAX: {
      const bool by_order = c10::isFloatingType(type);
      const auto compared = by_order ? arithmetic_type(integer_type(c10::elementSize(type))) : dtype;
      const auto op = kind == Op::MIN ? ccl::reduction::min : ccl::reduction::max;
      return {*compared, op, nullptr, false, by_order};
    }
    default: break;
  }
  if (auto reduction = c10::isIntegralType(type, false) ? bitwise_reduction(kind, *dtype) : std::nullopt)
    return *reduction;
  if (kind == Op::PREMUL_SUM)
    not_implemented(std::string(collective) + " has no PREMUL_SUM: multiply the tensor, then use ReduceOp.SUM");
  not_implemented(
      std::string(collective) + ": bitwise reductions need integer or bool tensors, not " +
      std::string(c10::toString(type)) + ": view the tensor as an integer type first");
}

} // namespace

void not_implemented(const std::string& message) {
  C10_THROW_ERROR(NotImplementedError, "ccl: " + message);
}

Reduction reduction_for(const char* collective, const c10d::ReduceOp& op, at::ScalarType type) {
  auto reduction = make_reduction(collective, op, type);
  reduction.name = name_of_op(op);
  reduction.bytes = c10::elementSize(type) / reduction.parts;
  return reduction;
}

at::Tensor to_integers_of_same_order(const Reduction& reduction, const at::Tensor& tensor) {
  if (!reduction.by_order)
    return tensor;
  const auto numbers = tensor.detach().clone(at::MemoryFormat::Contiguous);
  const auto largest = largest_integer(numbers.element_size());
  auto bits = numbers.view(integer_type(numbers.element_size()));
  const auto nan = numbers.isnan();
  flip_negative(bits);
  bits.masked_fill_(nan, reduction.op == ccl::reduction::min ? -largest - 1 : largest);
  return numbers;
}

void to_numbers(const Reduction& reduction, const at::Tensor& integers) {
  if (reduction.by_order)
    flip_negative(integers.view(integer_type(integers.element_size())));
}

void divide_in_place(at::Tensor& tensor, int64_t divisor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return divide<float>(tensor, divisor);
    case at::kDouble: return divide<double>(tensor, divisor);
    case at::kBFloat16: return divide<c10::BFloat16>(tensor, divisor);
    case at::kHalf: return divide<c10::Half>(tensor, divisor);
    case at::kComplexFloat: return divide<c10::complex<float>>(tensor, divisor);
    case at::kComplexDouble: return divide<c10::complex<double>>(tensor, divisor);
    default: not_implemented("ReduceOp.AVG of this dtype: use ReduceOp.SUM and divide");
  }
}

} // namespace orch_ccl
