#include "presence.h"

#include <chrono>
#include <thread>

namespace orch_ccl {
namespace {

using Clock = std::chrono::steady_clock;

// A visit takes microseconds, on a busy machine milliseconds. A process that is stopped (by a debugger or a frozen
// cgroup) may remain in one forever; in that case only the buffers that failed operations keep allocated prevent
// damage.
constexpr auto kMaxVisitTime = std::chrono::seconds(10);
constexpr auto kVisitCheckInterval = std::chrono::microseconds(20);

bool is_visiting(const Segment& segment, int rank) {
  return segment.progress_of(rank).visiting.load(std::memory_order_seq_cst);
}

} // namespace

// Each side writes its flag before it reads the other's, in one total order (seq_cst): either the visitor sees that the
// rank has left, or the leaving rank sees the visitor and waits for it.
Visit::Visit(const Segment& segment, int rank) : visiting_(segment.progress_of(rank).visiting) {
  visiting_.store(true, std::memory_order_seq_cst);
  for (int other = 0; other < segment.ranks(); ++other)
    if (segment.progress_of(other).left.load(std::memory_order_seq_cst)) {
      visiting_.store(false, std::memory_order_release);
      throw RankLeft(other);
    }
}

Visit::~Visit() {
  visiting_.store(false, std::memory_order_release);
}

void leave(const Segment& segment, int rank, const std::function<bool(int)>& alive) {
  segment.progress_of(rank).left.store(true, std::memory_order_seq_cst);
  const auto deadline = Clock::now() + kMaxVisitTime;
  for (int other = 0; other < segment.ranks(); ++other)
    while (is_visiting(segment, other) && Clock::now() < deadline && alive(other))
      std::this_thread::sleep_for(kVisitCheckInterval);
}

} // namespace orch_ccl
