#include "transfer.h"

#include <algorithm>
#include <utility>

#include <x86intrin.h>

#include "shared_exchange.h"

namespace orch_ccl {
namespace {

// A test ends after so many acts, because other operations wait for their turn.
constexpr int kActs = 8;
// A keen one looks so often for what the others do, a microsecond or two, before it ends.
constexpr int kKeenLooks = 64;
// Work ahead by so many rounds, so that the others find what they need.
constexpr uint64_t kAhead = 2;

// The ranks do the same in a round, so that each sees what its route costs all of them.
bool all_alike(const Exchange& exchange) {
  return exchange.kind != Exchange::reduce && exchange.kind != Exchange::broadcast;
}

// Adds the processor's ticks from here to the end of the block.
class Stopwatch {
 public:
  explicit Stopwatch(uint64_t& sum) : sum_(sum), begun_(__rdtsc()) {}
  ~Stopwatch() { sum_ += __rdtsc() - begun_; }
  Stopwatch(const Stopwatch&) = delete;

 private:
  uint64_t& sum_;
  const uint64_t begun_;
};

uint64_t hash_of(const Exchange& exchange) {
  uint64_t hash = 1469598103934665603u; // FNV-1a
  for (const uint64_t part :
       {uint64_t{exchange.kind}, uint64_t{exchange.bytes}, uint64_t(exchange.root), uint64_t(exchange.number),
        uint64_t(exchange.by)})
    hash = (hash ^ part) * 1099511628211u;
  return hash;
}

} // namespace

Transfer::Transfer(
    std::shared_ptr<Segment> segment, std::shared_ptr<Routes> routes, int rank, ExchangeData data, uint64_t first)
    : segment_(std::move(segment)),
      rank_(rank),
      ranks_(segment_->ranks()),
      mine_(segment_->of(rank)),
      data_(std::move(data)),
      call_(hash_of(data_.exchange())),
      first_(first),
      staged_(first),
      reduced_(first),
      copied_(first),
      all_staged_(first),
      all_reduced_(first),
      all_copied_(0) { // the others may still be at an earlier exchange
  const auto& pieces = data_.pieces();
  if (pieces.together() || pieces.longest() < kShortestShare)
    return;
  routes_ = std::move(routes);
  measured_ = all_alike(data_.exchange());
  if (measured_)
    routed_ = routes_->begin(pieces.rounds());
}

// A tensor in the heap is the others' until they have read it. Of an all_reduce they have, where they tell that
// their shares are there.
bool Transfer::done() {
  return copied_ == end() &&
      (!data_.in_heap() || data_.exchange().kind == Exchange::all_reduce ||
       others(&Progress::copied, end(), all_copied_));
}

bool Transfer::test(bool keen) {
  const Visit visit(*segment_, rank_);
  for (int acts = 0, looks = 0; acts < kActs && !done();) {
    if (act())
      ++acts, looks = 0;
    else if (!keen || ++looks == kKeenLooks)
      return false;
    else
      __builtin_ia32_pause();
  }
  return done();
}

bool Transfer::act() {
  if (staged_ < reduced_ + kAhead && can_stage())
    stage();
  else if (reduced_ < copied_ + kAhead && can_reduce())
    reduce();
  else if (can_copy())
    copy();
  else if (can_reduce())
    reduce();
  else if (can_stage())
    stage();
  else
    return false;
  return true;
}

bool Transfer::others(Counter counter, uint64_t at_least, uint64_t& seen) {
  if (seen >= at_least)
    return true;
  uint64_t least = UINT64_MAX;
  for (int other = 0; other < ranks_; ++other)
    if (other != rank_)
      least = std::min(least, (segment_->of(other).*counter).load(std::memory_order_acquire));
  seen = least;
  return seen >= at_least;
}

bool Transfer::check_call(int other, uint64_t round) const {
  if (segment_->of(other).call[round % kSlots].load(std::memory_order_relaxed) != call_)
    throw OtherCall(other);
  return true;
}

bool Transfer::check_calls(uint64_t round) const {
  for (int other = 0; other < ranks_; ++other)
    if (other != rank_)
      check_call(other, round);
  return true;
}

// The root of a broadcast waits for nobody, so it looks only at the ranks that have come already. It has announced its
// own round before, in one total order (the fences of both): of two ranks that are both root, one sees the other.
bool Transfer::check_staged_calls(uint64_t round) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int other = 0; other < ranks_; ++other)
    if (other != rank_ && segment_->of(other).staged.load(std::memory_order_acquire) > round)
      check_call(other, round);
  return true;
}

bool Transfer::can_stage() {
  return staged_ < end() && (staged_ < kSlots || others(&Progress::copied, staged_ + 1 - kSlots, all_copied_));
}

bool Transfer::can_reduce() {
  if (reduced_ >= staged_)
    return false;
  if (!data_.reduces())
    return true;
  if (!others(&Progress::staged, reduced_ + 1, all_staged_))
    return false;
  return check_calls(reduced_);
}

bool Transfer::can_copy() {
  if (copied_ >= reduced_)
    return false;
  const auto& exchange = data_.exchange();
  if (data_.pieces().together() || exchange.kind == Exchange::reduce_scatter || !data_.receives())
    return true;
  if (exchange.kind == Exchange::broadcast) {
    if (rank_ == exchange.root)
      return check_staged_calls(copied_);
    const auto& root = segment_->of(exchange.root);
    return root.staged.load(std::memory_order_acquire) > copied_ && check_call(exchange.root, copied_);
  }
  if (exchange.kind != Exchange::all_gather)
    return others(&Progress::reduced, copied_ + 1, all_reduced_);
  if (!others(&Progress::staged, copied_ + 1, all_staged_))
    return false;
  return check_calls(copied_);
}

Route Transfer::next_route() const {
  if (!routes_)
    return Route::caches;
  return measured_ ? routes_->of(routed_ + staged_ - first_) : routes_->best();
}

// A round that is over, if all have gone one way and nothing was shorter than elsewhere. One rank decides for all,
// because each finds something else where both routes take about the same.
void Transfer::measure(uint64_t round) {
  const uint64_t ticks = std::exchange(spent_[round % kSlots], 0);
  const size_t bytes = data_.bytes_in(round);
  const Route mine = data_.route_of(rank_, round);
  bool counts = rank_ == 0 && measured_ && bytes == data_.pieces().longest();
  for (int other = 0; other < ranks_; ++other)
    counts = counts && data_.route_of(other, round) == mine && data_.in_heap(other, round) == data_.in_heap();
  if (counts)
    routes_->took(mine, routed_ + round - first_, static_cast<double>(ticks) / bytes);
}

void Transfer::stage() {
  {
    const Stopwatch watch(spent_[staged_ % kSlots]);
    data_.stage(staged_, next_route());
  }
  mine_.call[staged_ % kSlots].store(call_, std::memory_order_relaxed);
  publish(&Progress::staged, staged_);
  if (data_.exchange().kind == Exchange::all_gather)
    data_.keep(staged_ - 1); // it has just been read
}

void Transfer::reduce() {
  {
    const Stopwatch watch(spent_[reduced_ % kSlots]);
    data_.reduce(reduced_);
  }
  publish(&Progress::reduced, reduced_);
}

void Transfer::copy() {
  {
    const Stopwatch watch(spent_[copied_ % kSlots]);
    data_.copy(copied_);
  }
  measure(copied_);
  publish(&Progress::copied, copied_);
}

} // namespace orch_ccl
