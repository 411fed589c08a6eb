#include "wire.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace orch_ccl::wire {
namespace {

constexpr auto kByteType = ccl::datatype::uint8;

void copy(const void* in, void* out, size_t bytes) {
  if (in != out && bytes > 0)
    std::memmove(out, in, bytes);
}

const char* offset_by(const void* data, size_t bytes) {
  return static_cast<const char*>(data) + bytes;
}

char* offset_by(void* data, size_t bytes) {
  return static_cast<char*>(data) + bytes;
}

// Calls call(first, length) for each piece of `count` elements.
template <typename Call>
void for_each_piece(size_t count, Call call) {
  for (size_t first = 0; first < count; first += max_elements_per_call())
    call(first, std::min(count - first, max_elements_per_call()));
}

std::optional<NumberType> number_type_of(ccl::datatype type) {
  switch (type) {
    case ccl::datatype::float32: return NumberType::float32;
    case ccl::datatype::float64: return NumberType::float64;
    case ccl::datatype::bfloat16: return NumberType::bfloat16;
    case ccl::datatype::int8: return NumberType::int8;
    case ccl::datatype::uint8: return NumberType::uint8;
    case ccl::datatype::int16: return NumberType::int16;
    case ccl::datatype::int32: return NumberType::int32;
    case ccl::datatype::int64: return NumberType::int64;
    default: return std::nullopt;
  }
}

std::optional<CombineOp> combine_op_of(ccl::reduction op) {
  switch (op) {
    case ccl::reduction::sum: return CombineOp::sum;
    case ccl::reduction::prod: return CombineOp::product;
    case ccl::reduction::min: return CombineOp::minimum;
    case ccl::reduction::max: return CombineOp::maximum;
    default: return std::nullopt;
  }
}

// Returns false if the ranks do not share memory or combiner.h does not support this reduction.
bool reduce_in_shared_memory(const Group& group, Exchange exchange, const Reduction& reduction, Events& events) {
  const auto number_type = number_type_of(reduction.dtype);
  const auto op = combine_op_of(reduction.op);
  if (!group.shared() || !number_type || !op)
    return false;
  exchange.number_type = *number_type;
  exchange.op = *op;
  exchange.average = reduction.average;
  events.push_back(group.shared()->begin(exchange));
  return true;
}

bool move_in_shared_memory(const Group& group, const Exchange& exchange, Events& events) {
  if (!group.shared())
    return false;
  events.push_back(group.shared()->begin(exchange));
  return true;
}

} // namespace

size_t bytes_of(size_t count, const Reduction& reduction) {
  return count * reduction.bytes;
}

size_t max_elements_per_call() {
  static const size_t limit = [] {
    const char* text = getenv("ORCH_CCL_MOST_ELEMENTS");
    return text ? std::max(1UL, strtoul(text, nullptr, 10)) : size_t{1} << 30;
  }();
  return limit;
}

void allreduce(
    const Group& group, const void* in, void* out, size_t count, const Reduction& reduction, Events& events) {
  if (group.has_one_rank())
    return copy(in, out, bytes_of(count, reduction));
  if (reduce_in_shared_memory(group, {Exchange::all_reduce, in, out, bytes_of(count, reduction)}, reduction, events))
    return;
  for_each_piece(count, [&](size_t first, size_t length) {
    const size_t offset = bytes_of(first, reduction);
    events.push_back(ccl::allreduce(
        offset_by(in, offset), offset_by(out, offset), length, reduction.dtype, reduction.op, group.comm()));
  });
}

void reduce(
    const Group& group, const void* in, void* out, size_t count, const Reduction& reduction, int root, Events& events) {
  if (group.has_one_rank())
    return copy(in, out, bytes_of(count, reduction));
  if (reduce_in_shared_memory(group, {Exchange::reduce, in, out, bytes_of(count, reduction), root}, reduction, events))
    return;
  for_each_piece(count, [&](size_t first, size_t length) {
    const size_t offset = bytes_of(first, reduction);
    events.push_back(ccl::reduce(
        offset_by(in, offset), offset_by(out, offset), length, reduction.dtype, reduction.op, root, group.comm()));
  });
}

void reduce_scatter(
    const Group& group, const void* in, void* out, size_t count, const Reduction& reduction, Events& events) {
  if (count == 0)
    return;
  if (group.has_one_rank())
    return copy(in, out, bytes_of(count, reduction));
  const Exchange exchange{Exchange::reduce_scatter, in, out, bytes_of(count, reduction)};
  if (reduce_in_shared_memory(group, exchange, reduction, events))
    return;
  events.push_back(ccl::reduce_scatter(in, out, count, reduction.dtype, reduction.op, group.comm()));
}

void broadcast(const Group& group, void* data, size_t bytes, int root, Events& events) {
  if (group.has_one_rank())
    return;
  if (move_in_shared_memory(group, {Exchange::broadcast, data, data, bytes, root}, events))
    return;
  for_each_piece(bytes, [&](size_t first, size_t length) {
    events.push_back(ccl::broadcast(offset_by(data, first), length, kByteType, root, group.comm()));
  });
}

void allgather(const Group& group, const void* in, void* out, size_t bytes, Events& events) {
  if (bytes == 0)
    return;
  if (group.has_one_rank())
    return copy(in, out, bytes);
  if (move_in_shared_memory(group, {Exchange::all_gather, in, out, bytes}, events))
    return;
  if (bytes * group.size() > max_elements_per_call())
    return allgatherv(group, in, out, std::vector<size_t>(group.size(), bytes), events);
  events.push_back(ccl::allgather(in, out, bytes, kByteType, group.comm()));
}

void allgatherv(const Group& group, const void* in, void* out, const std::vector<size_t>& bytes, Events& events) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank())
      copy(in, out, bytes[rank]);
    broadcast(group, out, bytes[rank], rank, events);
    out = offset_by(out, bytes[rank]);
  }
}

void alltoallv(
    const Group& group,
    const void* in,
    const std::vector<size_t>& in_bytes,
    void* out,
    const std::vector<size_t>& out_bytes,
    Events& events) {
  if (group.has_one_rank())
    return copy(in, out, in_bytes[0]);
  events.push_back(ccl::alltoallv(in, in_bytes, out, out_bytes, kByteType, group.comm()));
}

void send(const Group& group, void* data, size_t bytes, int peer, Events& events) {
  if (bytes > 0)
    events.push_back(ccl::send(data, bytes, kByteType, peer, group.comm()));
}

void receive(const Group& group, void* data, size_t bytes, int peer, Events& events) {
  if (bytes > 0)
    events.push_back(ccl::recv(data, bytes, kByteType, peer, group.comm()));
}

} // namespace orch_ccl::wire
