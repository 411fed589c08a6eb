#pragma once

#include <functional>
#include <stdexcept>

#include "shared_segment.h"

namespace orch_ccl {

// A rank of the group has left after an error, a timeout or abort(): its caller owns its tensors again.
struct RankLeft : std::runtime_error {
  explicit RankLeft(int rank) : runtime_error("a rank has left the group"), rank(rank) {}
  const int rank; // may be this one
};

// While one lives, this rank may read and write the memory of the others. A thread makes it under the engine's lock, for
// one test of a transfer. Raises RankLeft.
class Visit {
 public:
  Visit(const Segment& segment, int rank);
  ~Visit();
  Visit(const Visit&) = delete;

 private:
  std::atomic<bool>& visiting_;
};

// Leaves the group permanently, and waits until the visits of the other ranks that began earlier have ended. Any thread
// may call it, with or without the engine's lock, but not during a visit. `alive` checks another rank's process.
void leave(const Segment& segment, int rank, const std::function<bool(int)>& alive);

} // namespace orch_ccl
