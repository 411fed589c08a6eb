#pragma once

#include <memory>

#include "exchange_data.h"
#include "pollable.h"

namespace orch_ccl {

// One rank's part in an exchange: decides which phase of which round is possible, and runs it. Created under the engine's
// lock, and tested by one thread at a time.
class Transfer final : public Pollable {
 public:
  // `first`: the group's number of the first round. `routes`: for exchanges of this kind and length.
  Transfer(
      std::shared_ptr<Segment> segment, std::shared_ptr<RouteSelector> routes, int rank, ExchangeData data,
      uint64_t first);

  uint64_t end() const { return first_ + data_.pieces().rounds(); }
  // Throws CollectiveMismatch, RankLeft and InvalidHeapOffset.
  bool test(bool may_spin) override;
  // Whether the last test() has moved data.
  bool advanced() const { return advanced_; }

 private:
  using Counter = std::atomic<uint64_t> Progress::*;

  // Runs one phase of one round. Returns false if none is possible.
  bool advance();
  bool can_stage();
  bool can_reduce();
  bool can_copy();
  void stage();
  void reduce();
  void copy();
  bool done();
  Route next_route() const;
  void measure(uint64_t round);
  // Returns whether the counters of all other ranks are at least `at_least`. `lowest_seen` caches the lowest one.
  bool others_reached(Counter counter, uint64_t at_least, uint64_t& lowest_seen);
  // These throw CollectiveMismatch if a rank has announced a different call for the round; otherwise they return true.
  bool check_call(int other, uint64_t round) const;
  bool check_staged_calls(uint64_t round) const;
  bool check_calls(uint64_t round) const;
  void publish(Counter counter, uint64_t& rounds) { (progress_.*counter).store(++rounds, std::memory_order_release); }

  const std::shared_ptr<Segment> segment_;
  std::shared_ptr<RouteSelector> routes_; // null for short exchanges, which always use the caches
  const int rank_, ranks_;
  Progress& progress_;
  const ExchangeData data_;
  const uint64_t call_hash_;
  bool advanced_ = false;
  bool measured_ = false; // its rounds are samples for routes_
  const uint64_t first_;
  uint64_t staged_, reduced_, copied_; // rounds that this rank has completed
  uint64_t all_staged_, all_reduced_, all_copied_; // rounds that all other ranks have completed, as last seen
  uint64_t first_routed_round_ = 0; // the number of the first round in routes_
  uint64_t ticks_[kSlots] = {}; // processor ticks spent on the rounds in progress
};

} // namespace orch_ccl
