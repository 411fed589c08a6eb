#include "routes.h"

#include <algorithm>

#include "shared_segment.h"

namespace orch_ccl {
namespace {

// What the rounds before left in the caches counts for as many rounds as there are slots, which are not measured.
constexpr uint64_t kTurn = 2 * kSlots;
// Each route has a turn in so many rounds, of which the slower one is 1.6 %.
constexpr uint64_t kPeriod = 64 * kTurn;
// Below this gain both are the same.
constexpr double kWorth = 1.15;

} // namespace

uint64_t Routes::begin(uint64_t rounds) {
  const uint64_t first = rounds_;
  rounds_ += rounds;
  return first;
}

Route Routes::of(uint64_t round) const {
  const uint64_t turn = round % kPeriod / kTurn;
  return turn == 1 ? Route::caches : turn == 2 ? Route::memory : best();
}

// A round that another program has interrupted tells nothing.
double Routes::Samples::least() const {
  return *std::min_element(last, last + kSamples);
}

void Routes::took(Route route, uint64_t round, double ticks_per_byte) {
  if (round < kTurn || round % kTurn < kSlots) // the very first ones touch new pages
    return;
  auto& seen = samples(route);
  seen.last[seen.count++ % kSamples] = ticks_per_byte;
  const Route now = best(), other = now == Route::caches ? Route::memory : Route::caches;
  const auto &here = samples(now), &there = samples(other);
  if (here.known() && there.known() && there.least() * kWorth < here.least())
    best_.store(other, std::memory_order_relaxed);
}

} // namespace orch_ccl
