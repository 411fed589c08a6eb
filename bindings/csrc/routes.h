#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace orch_ccl {

// How data goes from one core to another. Cores that share a cache hand it over there; between others (of another
// core complex, of another socket) it is up to five times as fast to write it to memory and read it from there.
enum class Route : uint8_t { caches, memory };
constexpr int kRoutes = 2;

// Which route is the faster one, by what the last rounds of both have taken. It is measured, because virtual
// machines do not tell which of their cores share a cache, and move them while a program runs.
class Routes {
 public:
  // `best`: where all ranks look it up, and one of them writes it.
  explicit Routes(std::atomic<Route>& best) : best_(best) {}

  // The next `rounds` rounds -> the number of the first. All ranks ask for the same, in the same order.
  uint64_t begin(uint64_t rounds);
  // Of a round. At times, and then on all ranks, it is a route that has to be tried again.
  Route of(uint64_t round) const;
  Route best() const { return best_.load(std::memory_order_relaxed); }
  // What a round took that all ranks went by one route; said by the rank that writes the best.
  void took(Route route, uint64_t round, double ticks_per_byte);

 private:
  static constexpr int kSamples = 4;
  struct Samples {
    double last[kSamples];
    uint64_t count = 0;
    bool known() const { return count >= kSamples; }
    double least() const;
  };

  Samples& samples(Route route) { return samples_[static_cast<int>(route)]; }

  std::atomic<Route>& best_;
  uint64_t rounds_ = 0;
  Samples samples_[kRoutes];
};

} // namespace orch_ccl
