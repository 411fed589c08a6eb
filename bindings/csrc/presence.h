#pragma once

#include <functional>

#include "errors.h"
#include "shared_segment.h"

namespace orch_ccl {

// While a Visit exists, this rank may read and write the memory of the other ranks. The thread that tests a transfer
// creates it for one test. Throws RankLeft.
class Visit {
 public:
  Visit(const Segment& segment, int rank);
  ~Visit();
  Visit(const Visit&) = delete;

 private:
  std::atomic<bool>& visiting_;
};

// Leaves the group permanently and waits until earlier visits have ended, also those of this rank's own threads. Any
// thread may call it, with or without the engine's lock, but not during a visit. `alive` returns whether the process of a rank is alive.
void leave(const Segment& segment, int rank, const std::function<bool(int)>& alive);

} // namespace orch_ccl
