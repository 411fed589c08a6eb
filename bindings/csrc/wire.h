#pragma once

#include <vector>

#include "group.h"
#include "types.h"
#include "work.h"

// oneCCL's calls, reduced to what the process group needs: contiguous memory in, events out. A group of
// one rank copies instead, so it needs neither MPI nor a network. Data that is only moved travels as
// bytes, so every dtype can be moved, also those that oneCCL has no name for.
namespace orch_ccl::wire {

void allreduce(const Group&, const void* in, void* out, size_t count, const Reduction&, Events&);
void reduce(const Group&, const void* in, void* out, size_t count, const Reduction&, int root, Events&);
void reduce_scatter(const Group&, const void* in, void* out, size_t count_per_rank, const Reduction&, Events&);
void broadcast(const Group&, void* data, size_t bytes, int root, Events&);
void allgather(const Group&, const void* in, void* out, size_t bytes_per_rank, Events&);
void alltoallv(
    const Group&,
    const void* in,
    const std::vector<size_t>& in_bytes,
    void* out,
    const std::vector<size_t>& out_bytes,
    Events&);
void barrier(const Group&, Events&);
void send(const Group&, void* data, size_t bytes, int peer, Events&);
void receive(const Group&, void* data, size_t bytes, int peer, Events&);

} // namespace orch_ccl::wire
