#include "transfer.h"

#include <algorithm>
#include <utility>

#include <x86intrin.h>


namespace orch_ccl {
namespace {

// A test ends after this number of phases, so that other operations are tested, too.
constexpr int kMaxActionsPerTest = 8;
// A test that may spin polls the other ranks this often, one or two microseconds, before it ends.
constexpr int kMaxIdlePolls = 64;
// Early phases run ahead by this number of rounds, so that the other ranks find the data that they need.
constexpr uint64_t kRoundsAhead = 2;

// Returns whether all ranks do the same work in a round, so that each can measure the cost of its route.
bool is_symmetric(const Exchange& exchange) {
  return exchange.kind != Exchange::reduce && exchange.kind != Exchange::broadcast;
}

// Adds the processor ticks until the end of the block to `sum`.
class Stopwatch {
 public:
  explicit Stopwatch(uint64_t& sum) : sum_(sum), start_(__rdtsc()) {}
  ~Stopwatch() { sum_ += __rdtsc() - start_; }
  Stopwatch(const Stopwatch&) = delete;

 private:
  uint64_t& sum_;
  const uint64_t start_;
};

uint64_t hash_of(const Exchange& exchange) {
  uint64_t hash = 1469598103934665603u; // FNV-1a
  for (const uint64_t part :
       {uint64_t{exchange.kind}, uint64_t{exchange.bytes}, uint64_t{exchange.whole_bytes()}, uint64_t(exchange.root),
        uint64_t(exchange.number_type), uint64_t(exchange.op), uint64_t(exchange.average)})
    hash = (hash ^ part) * 1099511628211u;
  return hash;
}

} // namespace

Transfer::Transfer(
    std::shared_ptr<Segment> segment, std::shared_ptr<RouteSelector> routes, int rank, ExchangeData data,
    uint64_t first)
    : segment_(std::move(segment)),
      rank_(rank),
      ranks_(segment_->ranks()),
      progress_(segment_->progress_of(rank)),
      data_(std::move(data)),
      call_hash_(hash_of(data_.exchange())),
      first_(first),
      staged_(first),
      reduced_(first),
      copied_(first),
      all_staged_(first),
      all_reduced_(first),
      all_copied_(0) { // the other ranks may still be in an earlier exchange
  const auto& pieces = data_.pieces();
  if (pieces.replicated() || pieces.max_piece_bytes() < kMinPieceBytes)
    return;
  routes_ = std::move(routes);
  measured_ = is_symmetric(data_.exchange());
  if (measured_)
    first_routed_round_ = routes_->reserve_rounds(pieces.rounds());
}

// A tensor in the heap must not change until the other ranks have read it. In an all_reduce they have read it when they
// have announced their shares of the result.
bool Transfer::done() {
  return copied_ == end() &&
      (!data_.in_heap() || data_.exchange().kind == Exchange::all_reduce ||
       others_reached(&Progress::copied, end(), all_copied_));
}

bool Transfer::test(bool may_spin) {
  const Visit visit(*segment_, rank_);
  advanced_ = false;
  for (int actions = 0, idle_polls = 0; actions < kMaxActionsPerTest && !done();) {
    if (advance())
      ++actions, idle_polls = 0, advanced_ = true;
    else if (!may_spin || ++idle_polls == kMaxIdlePolls)
      return false;
    else
      __builtin_ia32_pause();
  }
  return done();
}

bool Transfer::advance() {
  if (staged_ < reduced_ + kRoundsAhead && can_stage())
    stage();
  else if (reduced_ < copied_ + kRoundsAhead && can_reduce())
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

bool Transfer::others_reached(Counter counter, uint64_t at_least, uint64_t& lowest_seen) {
  if (lowest_seen >= at_least)
    return true;
  uint64_t least = UINT64_MAX;
  for (int other = 0; other < ranks_; ++other)
    if (other != rank_)
      least = std::min(least, (segment_->progress_of(other).*counter).load(std::memory_order_acquire));
  lowest_seen = least;
  return lowest_seen >= at_least;
}

bool Transfer::check_call(int other, uint64_t round) const {
  if (segment_->progress_of(other).call[round % kSlots].load(std::memory_order_relaxed) != call_hash_)
    throw CollectiveMismatch(other);
  return true;
}

bool Transfer::check_calls(uint64_t round) const {
  for (int other = 0; other < ranks_; ++other)
    if (other != rank_)
      check_call(other, round);
  return true;
}

// The root of a broadcast does not wait, so it checks only the ranks that have already staged. It has announced its
// call before, in one total order (by the fences of both): if two ranks both act as root, one of them sees the other.
bool Transfer::check_staged_calls(uint64_t round) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int other = 0; other < ranks_; ++other)
    if (other != rank_ && segment_->progress_of(other).staged.load(std::memory_order_acquire) > round)
      check_call(other, round);
  return true;
}

bool Transfer::can_stage() {
  return staged_ < end() && (staged_ < kSlots || others_reached(&Progress::copied, staged_ + 1 - kSlots, all_copied_));
}

bool Transfer::can_reduce() {
  if (reduced_ >= staged_)
    return false;
  if (!data_.is_reduction())
    return true;
  if (!others_reached(&Progress::staged, reduced_ + 1, all_staged_))
    return false;
  return check_calls(reduced_);
}

bool Transfer::can_copy() {
  if (copied_ >= reduced_)
    return false;
  const auto& exchange = data_.exchange();
  if (data_.pieces().replicated() || exchange.kind == Exchange::reduce_scatter || !data_.has_result())
    return true;
  if (exchange.kind == Exchange::broadcast) {
    if (rank_ == exchange.root)
      return check_staged_calls(copied_);
    const auto& root = segment_->progress_of(exchange.root);
    return root.staged.load(std::memory_order_acquire) > copied_ && check_call(exchange.root, copied_);
  }
  if (exchange.kind != Exchange::all_gather)
    return others_reached(&Progress::reduced, copied_ + 1, all_reduced_);
  if (!others_reached(&Progress::staged, copied_ + 1, all_staged_))
    return false;
  return check_calls(copied_);
}

Route Transfer::next_route() const {
  if (!routes_)
    return Route::caches;
  return measured_ ? routes_->route_for(first_routed_round_ + staged_ - first_) : routes_->best();
}

// Records the cost of a completed round if all ranks have used the same route and pieces of full length. Rank 0 decides
// for all ranks, because their measurements disagree if both routes take about the same time.
void Transfer::measure(uint64_t round) {
  const uint64_t ticks = std::exchange(ticks_[round % kSlots], 0);
  const size_t bytes = data_.bytes_in(round);
  const Route own_route = data_.route_of(rank_, round);
  bool comparable = rank_ == 0 && measured_ && bytes == data_.pieces().max_piece_bytes();
  for (int other = 0; other < ranks_; ++other)
    comparable =
        comparable && data_.route_of(other, round) == own_route && data_.in_heap(other, round) == data_.in_heap();
  if (comparable)
    routes_->record(own_route, first_routed_round_ + round - first_, static_cast<double>(ticks) / bytes);
}

void Transfer::stage() {
  {
    const Stopwatch watch(ticks_[staged_ % kSlots]);
    data_.stage(staged_, next_route());
  }
  progress_.call[staged_ % kSlots].store(call_hash_, std::memory_order_relaxed);
  publish(&Progress::staged, staged_);
  if (data_.exchange().kind == Exchange::all_gather)
    data_.copy_own_part(staged_ - 1); // it is still in the cache
}

void Transfer::reduce() {
  {
    const Stopwatch watch(ticks_[reduced_ % kSlots]);
    data_.reduce(reduced_);
  }
  publish(&Progress::reduced, reduced_);
}

void Transfer::copy() {
  {
    const Stopwatch watch(ticks_[copied_ % kSlots]);
    data_.copy(copied_);
  }
  measure(copied_);
  publish(&Progress::copied, copied_);
}

} // namespace orch_ccl
