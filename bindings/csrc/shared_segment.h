#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <sched.h>

#include "heap.h"
#include "memory_file.h"
#include "routes.h"

namespace orch_ccl {

constexpr uint64_t kSlots = 4; // rounds that may be in progress at the same time

// What a rank tells the other ranks. Values that change often are on separate cache lines. The first three count the
// rounds since the group was created.
struct Progress {
  alignas(128) std::atomic<uint64_t> staged; // its data is available
  alignas(128) std::atomic<uint64_t> reduced; // its share of the result is available
  alignas(128) std::atomic<uint64_t> copied; // it no longer accesses the data of the round
  alignas(128) std::atomic<uint64_t> call[kSlots]; // hash of the call that the round belongs to
  std::atomic<Route> route[kSlots]; // of its data
  std::atomic<size_t> heap_offset[kSlots]; // of its tensor in its heap; kNotInHeap: its data is in its slot
  alignas(128) std::atomic<bool> visiting; // it may be accessing the memory of other ranks; see presence.h
  alignas(128) std::atomic<bool> left; // after an error: other ranks must not access its memory
  alignas(128) cpu_set_t cores; // the CPU affinity of its process
  int threads; // with which its process computes
};

// Memory that all ranks of a group map. For each rank it holds a Progress and kSlots slots. Created by the thread that
// creates the group; then used under the engine's lock, except for the flags of presence.h.
class Segment {
 public:
  // Creates the segment, on rank 0. Throws the exceptions of MemoryFile, as does open().
  static std::shared_ptr<Segment> create(int ranks);
  // Opens the segment that rank 0 has created. `creator`: the process of rank 0.
  static std::shared_ptr<Segment> open(const std::string& id, pid_t creator, int ranks);

  const std::string& id() const { return file_.id(); }
  // Called when all ranks have mapped the segment. Afterwards other processes cannot.
  void close() { file_.close(); }

  int ranks() const { return ranks_; }
  size_t slot_bytes() const { return slot_bytes_; }
  Progress& progress_of(int rank) const;
  char* slot(int rank, uint64_t round) const;
  // The best route for a kind of exchange and a length with this number of binary digits.
  std::atomic<Route>& best_route(int kind, int digits) const;

 private:
  template <typename... Source>
  explicit Segment(int ranks, const Source&... source);

  MemoryFile file_;
  const int ranks_;
  const size_t slot_bytes_;
};

// Returns the size of a slot. It shrinks with the number of ranks, so that the total has a limit.
size_t slot_bytes_for(int ranks);

} // namespace orch_ccl
