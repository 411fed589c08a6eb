#include "wire.h"

#include <cstring>

namespace orch_ccl::wire {
namespace {

constexpr auto kByte = ccl::datatype::uint8;

void copy(const void* in, void* out, size_t bytes) {
  if (in != out && bytes > 0)
    std::memcpy(out, in, bytes);
}

size_t bytes_of(size_t count, const Reduction& reduction) {
  return count * ccl::get_datatype_size(reduction.dtype);
}

} // namespace

void allreduce(const Group& group, const void* in, void* out, size_t count, const Reduction& by, Events& events) {
  if (count == 0)
    return;
  if (group.alone())
    return copy(in, out, bytes_of(count, by));
  events.push_back(ccl::allreduce(in, out, count, by.dtype, by.op, group.comm()));
}

void reduce(const Group& group, const void* in, void* out, size_t count, const Reduction& by, int root, Events& events) {
  if (count == 0)
    return;
  if (group.alone())
    return copy(in, out, bytes_of(count, by));
  events.push_back(ccl::reduce(in, out, count, by.dtype, by.op, root, group.comm()));
}

void reduce_scatter(const Group& group, const void* in, void* out, size_t count, const Reduction& by, Events& events) {
  if (count == 0)
    return;
  if (group.alone())
    return copy(in, out, bytes_of(count, by));
  events.push_back(ccl::reduce_scatter(in, out, count, by.dtype, by.op, group.comm()));
}

void broadcast(const Group& group, void* data, size_t bytes, int root, Events& events) {
  if (bytes > 0 && !group.alone())
    events.push_back(ccl::broadcast(data, bytes, kByte, root, group.comm()));
}

void allgather(const Group& group, const void* in, void* out, size_t bytes, Events& events) {
  if (bytes == 0)
    return;
  if (group.alone())
    return copy(in, out, bytes);
  events.push_back(ccl::allgather(in, out, bytes, kByte, group.comm()));
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

void barrier(const Group& group, Events& events) {
  if (!group.alone())
    events.push_back(ccl::barrier(group.comm()));
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
