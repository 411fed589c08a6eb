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

constexpr uint64_t kSlots = 4; // rounds that may be under way at once

// What a rank tells the others, each on a cache line of its own: how many rounds it has come through since
// the group was made.
struct Progress {
  alignas(128) std::atomic<uint64_t> staged; // its data is in its slot
  alignas(128) std::atomic<uint64_t> reduced; // its share of the result is there
  alignas(128) std::atomic<uint64_t> copied; // it needs nothing of the round any more
  alignas(128) std::atomic<uint64_t> call[kSlots]; // which call the round belongs to
  std::atomic<Route> route[kSlots]; // how its data goes
  std::atomic<size_t> place[kSlots]; // of its tensor in its heap, or kNowhere: its data is in its slot
  alignas(128) std::atomic<bool> visiting; // it may be reading or writing the memory of others: presence.h
  alignas(128) std::atomic<bool> left; // after an error; the other ranks may not access its memory
  alignas(128) cpu_set_t cores; // on which the process may run
};

// Memory that all ranks of a group map: one Progress each, and kSlots slots each.
class Segment {
 public:
  // Of this process. Raises what MemoryFile raises, as open() does.
  static std::shared_ptr<Segment> make(int ranks);
  // `creator`: the process of rank 0.
  static std::shared_ptr<Segment> open(const std::string& id, pid_t creator, int ranks);

  const std::string& id() const { return file_.id(); }
  // All that will map it have: from now on nobody else can.
  void close() { file_.close(); }

  int ranks() const { return ranks_; }
  size_t slot_bytes() const { return slot_bytes_; }
  Progress& of(int rank) const;
  char* slot(int rank, uint64_t round) const;
  // Of a kind of exchange, and of a length of so many binary digits.
  std::atomic<Route>& best_route(int kind, int digits) const;

 private:
  template <typename... Source>
  explicit Segment(int ranks, const Source&... source);

  MemoryFile file_;
  const int ranks_;
  const size_t slot_bytes_;
};

// A rank's slot is at most this long, and so much shorter that many ranks take no more memory than few.
size_t slot_bytes_for(int ranks);

} // namespace orch_ccl
