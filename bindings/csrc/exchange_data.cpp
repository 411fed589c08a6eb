#include "exchange_data.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "streaming.h"

namespace orch_ccl {
namespace {

// What is combined stays in the first-level cache until it is handed over.
constexpr size_t kBlock = 8 * 1024;

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0)
    std::memcpy(to, from, bytes);
}

} // namespace

ExchangeData::ExchangeData(
    std::shared_ptr<Segment> segment, std::shared_ptr<const Heaps> heaps, int rank, const Exchange& exchange,
    size_t place, uint64_t first)
    : segment_(std::move(segment)),
      heaps_(std::move(heaps)),
      rank_(rank),
      ranks_(segment_->ranks()),
      exchange_(exchange),
      pieces_(exchange, ranks_, segment_->slot_bytes()),
      place_(pieces_.together() ? kNowhere : place),
      combine_(orch_ccl::reduces(exchange) ? combiner_for(exchange.number, exchange.by) : nullptr),
      first_(first) {}

Route ExchangeData::route_of(int rank, uint64_t round) const {
  return segment_->of(rank).route[round % kSlots].load(std::memory_order_relaxed);
}

size_t ExchangeData::place_of(int rank, uint64_t round) const {
  return segment_->of(rank).place[round % kSlots].load(std::memory_order_relaxed);
}

size_t ExchangeData::bytes_in(uint64_t round) const {
  return reduces() ? share(rank_, round).bytes : whole(round).bytes;
}

// What another rank gives in a round: a piece of its tensor in its heap, or from `in_slot` on of its slot.
const char* ExchangeData::given(int rank, uint64_t round, const Piece& piece, size_t in_slot) const {
  const size_t place = place_of(rank, round);
  return place == kNowhere ? slot(rank, round) + in_slot : in_heap_of(rank, place, piece);
}

// `place` was read from the segment once, so that what is checked is what is used.
char* ExchangeData::in_heap_of(int rank, size_t place, const Piece& piece) const {
  if (heaps_->empty())
    throw InvalidPlace(rank);
  // A share without bytes may begin beyond the tensor.
  return heaps_->at(rank, place, piece.bytes > 0 ? piece.at : 0, piece.bytes);
}

void ExchangeData::stage(uint64_t round, Route by) const {
  if (!in_heap())
    fill_slot(round, by);
  auto& mine = segment_->of(rank_);
  mine.route[round % kSlots].store(by, std::memory_order_relaxed);
  mine.place[round % kSlots].store(place_, std::memory_order_relaxed);
}

void ExchangeData::fill_slot(uint64_t round, Route by) const {
  char* to = slot(rank_, round);
  if (reduces() && !pieces_.together()) {
    for (int other = 0; other < ranks_; ++other)
      if (const auto piece = share(other, round); other != rank_)
        hand_over(to + other * pieces_.longest(), in(piece.at), piece.bytes, by);
  } else if (exchange_.kind != Exchange::broadcast || rank_ == exchange_.root) {
    const auto piece = whole(round);
    hand_over(to, in(piece.at), piece.bytes, by);
  }
}

void ExchangeData::deliver(char* to, const char* from, size_t bytes) const {
  if (to != from)
    pieces_.streamed() ? stream(to, from, bytes) : copy_bytes(to, from, bytes);
}

void ExchangeData::keep(uint64_t round) const {
  const auto piece = whole(round);
  deliver(out(rank_ * exchange_.bytes + piece.at), in(piece.at), piece.bytes);
}

// Where the others look for what this rank makes of its share, which is `piece` of the tensor.
std::vector<char*> ExchangeData::takers(uint64_t round, const Piece& piece) const {
  std::vector<char*> found;
  bool slot_too = false;
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_)
      continue;
    const size_t place = place_of(other, round);
    if (place != kNowhere)
      found.push_back(in_heap_of(other, place, piece));
    else
      slot_too = true;
  }
  if (slot_too)
    found.push_back(slot(rank_, round) + rank_ * pieces_.longest());
  return found;
}

void ExchangeData::combine(
    const std::vector<const char*>& sources, char* result, const std::vector<char*>& takers, size_t bytes, Route by) const {
  alignas(kAligned) char block[kBlock];
  std::vector<const void*> from(ranks_);
  for (size_t at = 0; at < bytes; at += kBlock) {
    const size_t some = std::min(kBlock, bytes - at);
    for (int rank = 0; rank < ranks_; ++rank)
      from[rank] = sources[rank] + at;
    char* to = pieces_.streamed() ? block : result + at;
    combine_(from.data(), ranks_, to, some / size_of(exchange_.number));
    if (pieces_.streamed())
      stream(result + at, block, some);
    for (char* taker : takers)
      hand_over(taker + at, to, some, by);
  }
}

void ExchangeData::reduce(uint64_t round) const {
  const bool together = pieces_.together();
  if (!reduces() || (together && !receives()))
    return;
  std::vector<const char*> sources(ranks_);
  const auto piece = together ? whole(round) : share(rank_, round);
  const size_t in_slot = together ? 0 : rank_ * pieces_.longest();
  for (int rank = 0; rank < ranks_; ++rank)
    sources[rank] = rank == rank_ ? in(piece.at) : given(rank, round, piece, in_slot);
  const size_t at = exchange_.kind == Exchange::reduce_scatter ? pieces_.in_part(rank_, piece) : piece.at;
  const bool taken = exchange_.kind == Exchange::all_reduce && !together;
  combine(
      sources, receives() ? out(at) : slot(rank_, round) + in_slot,
      taken ? takers(round, piece) : std::vector<char*>(), piece.bytes, route_of(rank_, round));
}

void ExchangeData::copy(uint64_t round) const {
  const auto piece = whole(round);
  switch (exchange_.kind) {
    case Exchange::all_gather:
      for (int other = 0; other < ranks_; ++other)
        if (other != rank_)
          deliver(out(other * exchange_.bytes + piece.at), given(other, round, piece, 0), piece.bytes);
      break;
    case Exchange::broadcast:
      if (rank_ != exchange_.root)
        copy_bytes(out(piece.at), slot(exchange_.root, round), piece.bytes);
      break;
    case Exchange::reduce_scatter: break;
    default: // in a tensor in its heap the others' shares are already
      if (!pieces_.together() && receives() && !in_heap())
        for (int other = 0; other < ranks_; ++other)
          if (const auto made = share(other, round); other != rank_)
            copy_bytes(out(made.at), slot(other, round) + other * pieces_.longest(), made.bytes);
  }
}

} // namespace orch_ccl
