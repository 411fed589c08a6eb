#include "wire.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace orch_ccl::wire {
namespace {

constexpr auto kByte = ccl::datatype::uint8;

void copy(const void* in, void* out, size_t bytes) {
  if (in != out && bytes > 0)
    std::memmove(out, in, bytes);
}

const char* at(const void* data, size_t bytes) {
  return static_cast<const char*>(data) + bytes;
}

char* at(void* data, size_t bytes) {
  return static_cast<char*>(data) + bytes;
}

// call(first element, how many) for each piece
template <typename Call>
void in_pieces(size_t count, Call call) {
  for (size_t first = 0; first < count; first += most_elements())
    call(first, std::min(count - first, most_elements()));
}

std::optional<Number> number_of(ccl::datatype type) {
  switch (type) {
    case ccl::datatype::float32: return Number::float32;
    case ccl::datatype::float64: return Number::float64;
    case ccl::datatype::bfloat16: return Number::bfloat16;
    case ccl::datatype::int8: return Number::int8;
    case ccl::datatype::uint8: return Number::uint8;
    case ccl::datatype::int16: return Number::int16;
    case ccl::datatype::int32: return Number::int32;
    case ccl::datatype::int64: return Number::int64;
    default: return std::nullopt;
  }
}

std::optional<Combine> combination(ccl::reduction op) {
  switch (op) {
    case ccl::reduction::sum: return Combine::sum;
    case ccl::reduction::prod: return Combine::product;
    case ccl::reduction::min: return Combine::minimum;
    case ccl::reduction::max: return Combine::maximum;
    default: return std::nullopt;
  }
}

// Through memory that the ranks share, if they do, and if the loops know this reduction.
bool reduced_here(const Group& group, Exchange exchange, const Reduction& by, Events& events) {
  const auto number = number_of(by.dtype);
  const auto op = combination(by.op);
  if (!group.shared() || !number || !op)
    return false;
  exchange.number = *number;
  exchange.by = *op;
  events.push_back(group.shared()->begin(exchange));
  return true;
}

bool moved_here(const Group& group, const Exchange& exchange, Events& events) {
  if (!group.shared())
    return false;
  events.push_back(group.shared()->begin(exchange));
  return true;
}

} // namespace

size_t bytes_of(size_t count, const Reduction& reduction) {
  return count * reduction.bytes;
}

size_t most_elements() {
  static const size_t most = [] {
    const char* text = getenv("ORCH_CCL_MOST_ELEMENTS");
    return text ? std::max(1UL, strtoul(text, nullptr, 10)) : size_t{1} << 30;
  }();
  return most;
}

void allreduce(const Group& group, const void* in, void* out, size_t count, const Reduction& by, Events& events) {
  if (group.alone())
    return copy(in, out, bytes_of(count, by));
  if (reduced_here(group, {Exchange::all_reduce, in, out, bytes_of(count, by)}, by, events))
    return;
  in_pieces(count, [&](size_t first, size_t some) {
    const size_t offset = bytes_of(first, by);
    events.push_back(ccl::allreduce(at(in, offset), at(out, offset), some, by.dtype, by.op, group.comm()));
  });
}

void reduce(const Group& group, const void* in, void* out, size_t count, const Reduction& by, int root, Events& events) {
  if (group.alone())
    return copy(in, out, bytes_of(count, by));
  if (reduced_here(group, {Exchange::reduce, in, out, bytes_of(count, by), root}, by, events))
    return;
  in_pieces(count, [&](size_t first, size_t some) {
    const size_t offset = bytes_of(first, by);
    events.push_back(ccl::reduce(at(in, offset), at(out, offset), some, by.dtype, by.op, root, group.comm()));
  });
}

void reduce_scatter(const Group& group, const void* in, void* out, size_t count, const Reduction& by, Events& events) {
  if (count == 0)
    return;
  if (group.alone())
    return copy(in, out, bytes_of(count, by));
  if (reduced_here(group, {Exchange::reduce_scatter, in, out, bytes_of(count, by)}, by, events))
    return;
  events.push_back(ccl::reduce_scatter(in, out, count, by.dtype, by.op, group.comm()));
}

void broadcast(const Group& group, void* data, size_t bytes, int root, Events& events) {
  if (group.alone())
    return;
  if (moved_here(group, {Exchange::broadcast, data, data, bytes, root}, events))
    return;
  in_pieces(bytes, [&](size_t first, size_t some) {
    events.push_back(ccl::broadcast(at(data, first), some, kByte, root, group.comm()));
  });
}

void allgather(const Group& group, const void* in, void* out, size_t bytes, Events& events) {
  if (bytes == 0)
    return;
  if (group.alone())
    return copy(in, out, bytes);
  if (moved_here(group, {Exchange::all_gather, in, out, bytes}, events))
    return;
  if (bytes * group.size() > most_elements())
    return allgatherv(group, in, out, std::vector<size_t>(group.size(), bytes), events);
  events.push_back(ccl::allgather(in, out, bytes, kByte, group.comm()));
}

void allgatherv(const Group& group, const void* in, void* out, const std::vector<size_t>& bytes, Events& events) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank())
      copy(in, out, bytes[rank]);
    broadcast(group, out, bytes[rank], rank, events);
    out = at(out, bytes[rank]);
  }
}

void alltoallv(
    const Group& group,
    const void* in,
    const std::vector<size_t>& in_bytes,
    void* out,
    const std::vector<size_t>& out_bytes,
    Events& events) {
  if (group.alone())
    return copy(in, out, in_bytes[0]);
  events.push_back(ccl::alltoallv(in, in_bytes, out, out_bytes, kByte, group.comm()));
}

void send(const Group& group, void* data, size_t bytes, int peer, Events& events) {
  if (bytes > 0)
    events.push_back(ccl::send(data, bytes, kByte, peer, group.comm()));
}

void receive(const Group& group, void* data, size_t bytes, int peer, Events& events) {
  if (bytes > 0)
    events.push_back(ccl::recv(data, bytes, kByte, peer, group.comm()));
}

} // namespace orch_ccl::wire
