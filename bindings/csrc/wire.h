#pragma once

#include <vector>

#include "group.h"
#include "types.h"
#include "work.h"

// The collectives of oneCCL or shared memory, for contiguous buffers. Each function starts an operation and adds the
// events to wait for to `Events`. Called under the engine's lock, by the phases of an Operation. A group of one rank
// copies, so it needs neither MPI nor a network. Data that is not reduced is sent as bytes, so every dtype is
// supported.
//
// MPI counts elements in an int, even where oneCCL does not. Longer buffers than max_elements_per_call() are processed
// in pieces or by other collectives.
namespace orch_ccl::wire {

// The limit of one call to oneCCL: 2^30, or ORCH_CCL_MOST_ELEMENTS, which is for tests.
size_t max_elements_per_call();
size_t bytes_of(size_t count, const Reduction&);

void allreduce(const Group&, const void* in, void* out, size_t count, const Reduction&, Events&);
void reduce(const Group&, const void* in, void* out, size_t count, const Reduction&, int root, Events&);
void reduce_scatter(const Group&, const void* in, void* out, size_t count_per_rank, const Reduction&, Events&);
void broadcast(const Group&, void* data, size_t bytes, int root, Events&);
void allgather(const Group&, const void* in, void* out, size_t bytes_per_rank, Events&);
// For parts of different sizes: `bytes` has the size for each rank, and `out` holds all parts, one after the other. It
// is a broadcast by each rank, because in oneCCL's allgatherv ranks with different sizes may choose different
// algorithms.
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
