#include "shared_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <x86intrin.h>

#include "streaming.h"

namespace orch_ccl {
namespace {

// A test ends after so many acts, because other operations wait for their turn.
constexpr int kActs = 8;
// A keen one looks so often for what the others do, a microsecond or two, before it ends.
constexpr int kKeenLooks = 64;
// Work ahead by so many rounds, so that the others find what they need.
constexpr uint64_t kAhead = 2;
// What is combined before it is streamed stays in the first-level cache.
constexpr size_t kBlock = 8 * 1024;

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0)
    std::memcpy(to, from, bytes);
}

// Binary ones.
int digits(size_t number) {
  int count = 0;
  for (; number > 0; number /= 2)
    ++count;
  return count;
}

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

class Transfer final : public Step {
 public:
  Transfer(
      std::shared_ptr<Segment> segment, std::shared_ptr<Routes> routes, int rank, const Exchange& exchange,
      uint64_t first);

  uint64_t end() const { return first_ + pieces_.rounds(); }
  bool test(bool keen) override;

 private:
  using Counter = std::atomic<uint64_t> Progress::*;
  using Piece = Pieces::Piece;

  bool act();
  bool can_stage();
  bool can_reduce();
  bool can_copy();
  void stage();
  void reduce();
  void combine(const void* const* sources, void* result, void* shared, size_t bytes, Route by);
  void copy();
  void fetch();
  void keep(const Piece& piece) const;
  Route next_route() const;
  Route route_of(int rank, uint64_t round) const {
    return segment_->of(rank).route[round % kSlots].load(std::memory_order_relaxed);
  }
  void measure(uint64_t round);
  void deliver(char* to, const char* from, size_t bytes) const;
  bool others(Counter counter, uint64_t at_least, uint64_t& seen);
  bool check_call(int other, uint64_t round) const;
  void publish(Counter counter, uint64_t& mine) { (mine_.*counter).store(++mine, std::memory_order_release); }

  bool reduces() const { return orch_ccl::reduces(exchange_); }
  bool receives() const { return exchange_.kind != Exchange::reduce || rank_ == exchange_.root; }
  Piece share(int rank, uint64_t round) const { return pieces_.share(rank, round - first_); }
  Piece whole(uint64_t round) const { return pieces_.whole(round - first_); }
  const char* in(size_t at) const { return static_cast<const char*>(exchange_.in) + at; }
  char* out(size_t at) const { return static_cast<char*>(exchange_.out) + at; }
  char* slot(int rank, uint64_t round) const { return segment_->slot(rank, round); }

  const std::shared_ptr<Segment> segment_;
  std::shared_ptr<Routes> routes_; // null: short, always through the caches
  const int rank_, ranks_;
  Progress& mine_;
  const Exchange exchange_;
  const Pieces pieces_;
  const uint64_t call_;
  Combiner combine_ = nullptr;
  bool measured_ = false;
  const uint64_t first_;
  uint64_t staged_, reduced_, copied_; // by this rank
  uint64_t all_staged_, all_reduced_, all_copied_; // by the others, as seen last
  uint64_t routed_ = 0; // its first round, as routes_ count them
  uint64_t spent_[kSlots] = {}; // ticks on the rounds that are under way
};

Transfer::Transfer(
    std::shared_ptr<Segment> segment, std::shared_ptr<Routes> routes, int rank, const Exchange& exchange,
    uint64_t first)
    : segment_(std::move(segment)),
      rank_(rank),
      ranks_(segment_->ranks()),
      mine_(segment_->of(rank)),
      exchange_(exchange),
      pieces_(exchange, ranks_, segment_->slot_bytes()),
      call_(hash_of(exchange)),
      first_(first),
      staged_(first),
      reduced_(first),
      copied_(first),
      all_staged_(first),
      all_reduced_(first),
      all_copied_(0) { // the others may still be at an earlier exchange
  if (reduces())
    combine_ = combiner_for(exchange.number, exchange.by);
  if (pieces_.together() || pieces_.longest() < kShortestShare)
    return;
  routes_ = std::move(routes);
  measured_ = all_alike(exchange);
  if (measured_)
    routed_ = routes_->begin(pieces_.rounds());
}

bool Transfer::test(bool keen) {
  for (int acts = 0, looks = 0; acts < kActs && copied_ < end();) {
    if (act())
      ++acts, looks = 0;
    else if (!keen || ++looks == kKeenLooks)
      return false;
    else
      __builtin_ia32_pause();
  }
  return copied_ == end();
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

bool Transfer::can_stage() {
  return staged_ < end() && (staged_ < kSlots || others(&Progress::copied, staged_ + 1 - kSlots, all_copied_));
}

bool Transfer::can_reduce() {
  if (reduced_ >= staged_)
    return false;
  if (!reduces())
    return true;
  if (!others(&Progress::staged, reduced_ + 1, all_staged_))
    return false;
  for (int other = 0; other < ranks_; ++other)
    if (other != rank_)
      check_call(other, reduced_);
  return true;
}

bool Transfer::can_copy() {
  if (copied_ >= reduced_)
    return false;
  if (pieces_.together() || exchange_.kind == Exchange::reduce_scatter || !receives())
    return true;
  if (exchange_.kind == Exchange::broadcast) {
    if (rank_ == exchange_.root)
      return true;
    const auto& root = segment_->of(exchange_.root);
    return root.staged.load(std::memory_order_acquire) > copied_ && check_call(exchange_.root, copied_);
  }
  if (exchange_.kind != Exchange::all_gather)
    return others(&Progress::reduced, copied_ + 1, all_reduced_);
  if (!others(&Progress::staged, copied_ + 1, all_staged_))
    return false;
  for (int other = 0; other < ranks_; ++other)
    if (other != rank_)
      check_call(other, copied_);
  return true;
}

void Transfer::deliver(char* to, const char* from, size_t bytes) const {
  if (to != from)
    pieces_.streamed() ? stream(to, from, bytes) : copy_bytes(to, from, bytes);
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
  const size_t bytes = reduces() ? share(rank_, round).bytes : whole(round).bytes;
  const Route mine = route_of(rank_, round);
  bool counts = rank_ == 0 && measured_ && bytes == pieces_.longest();
  for (int other = 0; other < ranks_; ++other)
    counts = counts && route_of(other, round) == mine;
  if (counts)
    routes_->took(mine, routed_ + round - first_, static_cast<double>(ticks) / bytes);
}

void Transfer::stage() {
  const Stopwatch watch(spent_[staged_ % kSlots]);
  const Route by = next_route();
  char* to = slot(rank_, staged_);
  if (reduces() && !pieces_.together()) {
    for (int other = 0; other < ranks_; ++other)
      if (const auto piece = share(other, staged_); other != rank_)
        hand_over(to + other * pieces_.longest(), in(piece.at), piece.bytes, by);
  } else if (exchange_.kind != Exchange::broadcast || rank_ == exchange_.root) {
    const auto piece = whole(staged_);
    hand_over(to, in(piece.at), piece.bytes, by);
  }
  mine_.call[staged_ % kSlots].store(call_, std::memory_order_relaxed);
  mine_.route[staged_ % kSlots].store(by, std::memory_order_relaxed);
  publish(&Progress::staged, staged_);
  if (exchange_.kind == Exchange::all_gather)
    keep(whole(staged_ - 1));
}

// What a rank gives to an all_gather is in its result, too; it has just been read.
void Transfer::keep(const Piece& piece) const {
  deliver(out(rank_ * exchange_.bytes + piece.at), in(piece.at), piece.bytes);
}

void Transfer::combine(const void* const* sources, void* result, void* shared, size_t bytes, Route by) {
  const size_t width = size_of(exchange_.number);
  if (!pieces_.streamed()) {
    combine_(sources, ranks_, result, bytes / width);
    if (shared)
      hand_over(static_cast<char*>(shared), static_cast<const char*>(result), bytes, by);
    return;
  }
  alignas(kAligned) char block[kBlock];
  std::vector<const void*> from(sources, sources + ranks_);
  for (size_t at = 0; at < bytes; at += kBlock) {
    const size_t some = std::min(kBlock, bytes - at);
    for (int rank = 0; rank < ranks_; ++rank)
      from[rank] = static_cast<const char*>(sources[rank]) + at;
    combine_(from.data(), ranks_, block, some / width);
    stream(static_cast<char*>(result) + at, block, some);
  }
}

void Transfer::reduce() {
  const Stopwatch watch(spent_[reduced_ % kSlots]);
  if (reduces() && (receives() || !pieces_.together())) {
    std::vector<const void*> sources(ranks_);
    const auto piece = pieces_.together() ? whole(reduced_) : share(rank_, reduced_);
    const size_t offset = pieces_.together() ? 0 : rank_ * pieces_.longest();
    for (int rank = 0; rank < ranks_; ++rank)
      sources[rank] = rank == rank_ ? in(piece.at) : slot(rank, reduced_) + offset;
    const bool scatters = exchange_.kind == Exchange::reduce_scatter;
    void* shared = pieces_.together() || scatters ? nullptr : slot(rank_, reduced_) + offset;
    void* result = out(scatters ? pieces_.in_part(rank_, piece) : piece.at);
    if (!receives())
      std::swap(result, shared), shared = nullptr;
    combine(sources.data(), result, shared, piece.bytes, route_of(rank_, reduced_));
  }
  publish(&Progress::reduced, reduced_);
}

void Transfer::copy() {
  fetch();
  measure(copied_);
  publish(&Progress::copied, copied_);
}

void Transfer::fetch() {
  const Stopwatch watch(spent_[copied_ % kSlots]);
  if (exchange_.kind == Exchange::all_gather) {
    const auto piece = whole(copied_);
    for (int other = 0; other < ranks_; ++other)
      if (other != rank_)
        deliver(out(other * exchange_.bytes + piece.at), slot(other, copied_), piece.bytes);
  } else if (exchange_.kind == Exchange::broadcast && rank_ != exchange_.root) {
    const auto piece = whole(copied_);
    copy_bytes(out(piece.at), slot(exchange_.root, copied_), piece.bytes);
  } else if (!pieces_.together() && receives() && exchange_.kind <= Exchange::reduce) {
    for (int other = 0; other < ranks_; ++other)
      if (const auto piece = share(other, copied_); other != rank_)
        copy_bytes(out(piece.at), slot(other, copied_) + other * pieces_.longest(), piece.bytes);
  }
}

} // namespace

SharedExchanges::SharedExchanges(std::shared_ptr<Segment> segment, int rank)
    : segment_(std::move(segment)), rank_(rank) {}

std::shared_ptr<Step> SharedExchanges::begin(const Exchange& exchange) {
  auto transfer = std::make_shared<Transfer>(segment_, routes(exchange), rank_, exchange, rounds_);
  rounds_ = transfer->end();
  return transfer;
}

// What only one rank gives goes as what all give: it does not see what that costs the others.
std::shared_ptr<Routes> SharedExchanges::routes(const Exchange& exchange) {
  const auto like = exchange.kind == Exchange::broadcast ? Exchange::all_gather
      : exchange.kind == Exchange::reduce               ? Exchange::all_reduce
                                                        : exchange.kind;
  const int length = digits(exchange.bytes);
  auto& found = routes_[{like, length}];
  if (!found)
    found = std::make_shared<Routes>(segment_->best_route(like, length));
  return found;
}

} // namespace orch_ccl
