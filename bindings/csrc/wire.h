#pragma once

#include <vector>

#include "group.h"
#include "types.h"
#include "work.h"

// oneCCL's calls, reduced to what the process group needs: contiguous memory in, events out. A group of
// one rank copies instead, so it needs neither MPI nor a network. Data that is only moved travels as
// bytes, so every dtype can be moved, also those that oneCCL has no name for.
//
// MPI counts elements in an int, also where oneCCL does not. What is longer than most_elements() is
// carried out in pieces, or by other collectives.
namespace orch_ccl::wire {

// Of one call to oneCCL: 2^30, or ORCH_CCL_MOST_ELEMENTS, which is for tests.
size_t most_elements();
size_t bytes_of(size_t count, const Reduction&);

void allreduce(const Group&, const void* in, void* out, size_t count, const Reduction&, Events&);
void reduce(const Group&, const void* in, void* out, size_t count, const Reduction&, int root, Events&);
void reduce_scatter(const Group&, const void* in, void* out, size_t count_per_rank, const Reduction&, Events&);
void broadcast(const Group&, void* data, size_t bytes, int root, Events&);
void allgather(const Group&, const void* in, void* out, size_t bytes_per_rank, Events&);
// Of different sizes: `bytes` has one for each rank, and `out` holds all parts, one after the other. Each
// rank broadcasts its own: of oneCCL's allgatherv each rank takes the algorithm for its own size.
void allgatherv(const Group&, const void* in, void* out, const std::vector<size_t>& bytes, Events&);
void alltoallv(
    const Group&,
    const void* in,
    const std::vector<size_t>& in_bytes,
    void* out,
    const std::vector<size_t>& out_bytes,
    Events&);
void send(const Group&, void* data, size_t bytes, int peer, Events&);
void receive(const Group&, void* data, size_t bytes, int peer, Events&);

} // namespace orch_ccl::wire
