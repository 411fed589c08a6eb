#include "routes.h"

#include <algorithm>

#include "shared_segment.h"

namespace orch_ccl {
namespace {

// The first kSlots rounds of a trial are not measured, because the caches still hold data of earlier rounds.
constexpr uint64_t kTrialRounds = 2 * kSlots;
// In each period both routes are tried once, so the slower one is used in 1.6 % of all rounds.
constexpr uint64_t kPeriod = 64 * kTrialRounds;
// A smaller gain may be noise.
constexpr double kMinSpeedup = 1.15;

} // namespace

uint64_t RouteSelector::reserve_rounds(uint64_t rounds) {
  const uint64_t first = rounds_;
  rounds_ += rounds;
  return first;
}

Route RouteSelector::route_for(uint64_t round) const {
  const uint64_t trial = round % kPeriod / kTrialRounds;
  return trial == 1 ? Route::caches : trial == 2 ? Route::memory : best();
}

// The minimum ignores rounds that other programs have interrupted.
double RouteSelector::Samples::minimum() const {
  return *std::min_element(ticks_per_byte, ticks_per_byte + kSamples);
}

void RouteSelector::record(Route route, uint64_t round, double cost) {
  if (round < kTrialRounds || round % kTrialRounds < kSlots) // the very first rounds touch new pages
    return;
  auto& samples_of_route = samples(route);
  samples_of_route.ticks_per_byte[samples_of_route.count++ % kSamples] = cost;
  const Route current = best(), other = current == Route::caches ? Route::memory : Route::caches;
  const auto &current_samples = samples(current), &other_samples = samples(other);
  if (current_samples.complete() && other_samples.complete() &&
      other_samples.minimum() * kMinSpeedup < current_samples.minimum())
    best_.store(other, std::memory_order_relaxed);
}

} // namespace orch_ccl
