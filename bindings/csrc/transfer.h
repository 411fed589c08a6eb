#pragma once

#include <memory>

#include "exchange_data.h"
#include "step.h"

namespace orch_ccl {

// One rank's part in an exchange: what it does when, and what it waits for.
class Transfer final : public Step {
 public:
  // `first`: its first round, as the group counts them. `routes`: those of its kind, length and place.
  Transfer(std::shared_ptr<Segment> segment, std::shared_ptr<Routes> routes, int rank, ExchangeData data, uint64_t first);

  uint64_t end() const { return first_ + data_.pieces().rounds(); }
  // Raises OtherCall, RankLeft and InvalidPlace.
  bool test(bool keen) override;

 private:
  using Counter = std::atomic<uint64_t> Progress::*;

  bool act();
  bool can_stage();
  bool can_reduce();
  bool can_copy();
  void stage();
  void reduce();
  void copy();
  bool done();
  Route next_route() const;
  void measure(uint64_t round);
  bool others(Counter counter, uint64_t at_least, uint64_t& seen);
  bool check_call(int other, uint64_t round) const;
  bool check_staged_calls(uint64_t round) const;
  bool check_calls(uint64_t round) const;
  void publish(Counter counter, uint64_t& mine) { (mine_.*counter).store(++mine, std::memory_order_release); }

  const std::shared_ptr<Segment> segment_;
  std::shared_ptr<Routes> routes_; // null: short, always through the caches
  const int rank_, ranks_;
  Progress& mine_;
  const ExchangeData data_;
  const uint64_t call_;
  bool measured_ = false;
  const uint64_t first_;
  uint64_t staged_, reduced_, copied_; // by this rank
  uint64_t all_staged_, all_reduced_, all_copied_; // by the others, as seen last
  uint64_t routed_ = 0; // its first round, as routes_ count them
  uint64_t spent_[kSlots] = {}; // ticks on the rounds that are under way
};

} // namespace orch_ccl
