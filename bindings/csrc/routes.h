#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace orch_ccl {

// How data moves from one core to another. Cores that share a cache exchange data fastest through it; between others
// (of different core complexes or sockets) writing to memory and reading from there is up to five times as fast.
enum class Route : uint8_t { caches, memory };
constexpr int kRoutes = 2;

// Selects the faster route by the duration of the last rounds of both. It has to be measured, because virtual machines
// do not report which of their cores share a cache, and move them while a program runs. Used under the engine's lock.
class RouteSelector {
 public:
  // `best`: in shared memory; all ranks read it and rank 0 writes it.
  explicit RouteSelector(std::atomic<Route>& best) : best_(best) {}

  // Reserves the next `rounds` rounds and returns the number of the first one. All ranks make the same calls in the
  // same order.
  uint64_t reserve_rounds(uint64_t rounds);
  // Returns the route of a round: the best one, or in some rounds, which are the same on all ranks, one to be measured.
  Route route_for(uint64_t round) const;
  Route best() const { return best_.load(std::memory_order_relaxed); }
  // Records the cost, in ticks per byte, of a round in which all ranks used this route. Called by rank 0 only.
  void record(Route route, uint64_t round, double cost);

 private:
  static constexpr int kSamples = 4;
  struct Samples {
    double ticks_per_byte[kSamples];
    uint64_t count = 0;
    bool complete() const { return count >= kSamples; }
    double minimum() const;
  };

  Samples& samples(Route route) { return samples_[static_cast<int>(route)]; }

  std::atomic<Route>& best_;
  uint64_t rounds_ = 0;
  Samples samples_[kRoutes];
};

} // namespace orch_ccl
