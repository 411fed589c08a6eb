#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <sched.h>

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
  alignas(128) cpu_set_t cores; // on which the process may run
};

// Memory that all ranks of a group map: one Progress each, and kSlots slots each. It has no name in any file
// system, so nothing is left behind and /dev/shm's size does not matter; the others open it through
// /proc/PID/fd of the rank that made it, which only processes of one user and one pid namespace can.
class Segment {
 public:
  // Of this process. Raises std::system_error.
  static std::shared_ptr<Segment> make(int ranks);
  // The one that make() in another process calls `id`. Raises std::system_error, or std::runtime_error if that is
  // something else.
  static std::shared_ptr<Segment> open(const std::string& id, int ranks);
  ~Segment();
  Segment(const Segment&) = delete;

  const std::string& id() const { return id_; }
  // All that will map it have: from now on nobody else can.
  void close();

  int ranks() const { return ranks_; }
  size_t slot_bytes() const { return slot_bytes_; }
  Progress& of(int rank) const;
  char* slot(int rank, uint64_t round) const;
  // Of a kind of exchange, and of a length of so many binary digits.
  std::atomic<Route>& best_route(int kind, int digits) const;

 private:
  Segment(int file, int ranks);
  void map();
  uint64_t& token() const { return *static_cast<uint64_t*>(memory_); }

  int file_;
  const int ranks_;
  const size_t slot_bytes_;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
  std::string id_;
};

// A rank's slot is at most this long, and so much shorter that many ranks take no more memory than few.
size_t slot_bytes_for(int ranks);

} // namespace orch_ccl
