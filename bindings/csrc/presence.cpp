#include "presence.h"

#include <chrono>
#include <thread>

namespace orch_ccl {
namespace {

using Clock = std::chrono::steady_clock;

// A visit takes microseconds, on a busy machine milliseconds. A process that is stopped (by a debugger, by a frozen
// cgroup) may be in one for ever; then the buffers of the operation, which are never freed, have to suffice.
constexpr auto kLongestVisit = std::chrono::seconds(10);
constexpr auto kVisitCheckInterval = std::chrono::microseconds(20);

bool visits(const Segment& segment, int rank) {
  return segment.of(rank).visiting.load(std::memory_order_seq_cst);
}

} // namespace

// Both sides write their own flag first and then read the other's, in one total order (seq_cst): either the visitor sees
// that the rank has left, or the rank that leaves sees the visitor and waits for it.
Visit::Visit(const Segment& segment, int rank) : visiting_(segment.of(rank).visiting) {
  visiting_.store(true, std::memory_order_seq_cst);
  for (int other = 0; other < segment.ranks(); ++other)
    if (segment.of(other).left.load(std::memory_order_seq_cst)) {
      visiting_.store(false, std::memory_order_release);
      throw RankLeft(other);
    }
}

Visit::~Visit() {
  visiting_.store(false, std::memory_order_release);
}

void leave(const Segment& segment, int rank, const std::function<bool(int)>& alive) {
  segment.of(rank).left.store(true, std::memory_order_seq_cst);
  const auto deadline = Clock::now() + kLongestVisit;
  for (int other = 0; other < segment.ranks(); ++other)
    while (other != rank && visits(segment, other) && Clock::now() < deadline && alive(other))
      std::this_thread::sleep_for(kVisitCheckInterval);
}

} // namespace orch_ccl
