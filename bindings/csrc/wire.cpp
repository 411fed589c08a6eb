#include "wire.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace orch_ccl::wire {
namespace {

constexpr auto kByte = ccl::datatype::uint8;

void copy(const void* in, void* out, size_t bytes) {
  if (in != out && bytes > 0)
    std::memmove(out, in, bytes);
}

size_t bytes_of(size_t count, const Reduction& reduction) {
  return count * ccl::get_datatype_size(reduction.dtype);
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

} // namespace

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
  in_pieces(count, [&](size_t first, size_t some) {
    const size_t offset = bytes_of(first, by);
    events.push_back(ccl::allreduce(at(in, offset), at(out, offset), some, by.dtype, by.op, group.comm()));
  });
}

void reduce(const Group& group, const void* in, void* out, size_t count, const Reduction& by, int root, Events& events) {
  if (group.alone())
    return copy(in, out, bytes_of(count, by));
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
  events.push_back(ccl::reduce_scatter(in, out, count, by.dtype, by.op, group.comm()));
}

void broadcast(const Group& group, void* data, size_t bytes, int root, Events& events) {
  if (group.alone())
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
