#include "exchange_data.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "streaming.h"

namespace orch_ccl {
namespace {

// A block of results stays in the first-level cache until it is copied to its targets.
constexpr size_t kBlockBytes = 8 * 1024;

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0)
    std::memcpy(to, from, bytes);
}

} // namespace

ExchangeData::ExchangeData(
    std::shared_ptr<Segment> segment, std::shared_ptr<const Heaps> heaps, int rank, const Exchange& exchange,
    size_t heap_offset, uint64_t first)
    : segment_(std::move(segment)),
      heaps_(std::move(heaps)),
      rank_(rank),
      ranks_(segment_->ranks()),
      exchange_(exchange),
      pieces_(exchange, ranks_, segment_->slot_bytes()),
      heap_offset_(pieces_.replicated() ? kNotInHeap : heap_offset),
      combine_(orch_ccl::is_reduction(exchange) ? combiner_for(exchange.number_type, exchange.op) : nullptr),
      first_(first) {}

Route ExchangeData::route_of(int rank, uint64_t round) const {
  return segment_->progress_of(rank).route[round % kSlots].load(std::memory_order_relaxed);
}

size_t ExchangeData::heap_offset_of(int rank, uint64_t round) const {
  return segment_->progress_of(rank).heap_offset[round % kSlots].load(std::memory_order_relaxed);
}

size_t ExchangeData::bytes_in(uint64_t round) const {
  return is_reduction() ? share(rank_, round).bytes : piece_of_tensor(round).bytes;
}

// Returns the address of another rank's data: `piece` of the tensor in its heap, or the offset `in_slot` in its slot.
const char* ExchangeData::peer_data(int rank, uint64_t round, const Piece& piece, size_t in_slot) const {
  const size_t heap_offset = heap_offset_of(rank, round);
  return heap_offset == kNotInHeap ? slot(rank, round) + in_slot : in_heap_of(rank, heap_offset, piece);
}

// `heap_offset` is a copy of what the segment holds, so the checked value is the one that is used.
char* ExchangeData::in_heap_of(int rank, size_t heap_offset, const Piece& piece) const {
  if (heaps_->empty())
    throw InvalidHeapOffset(rank);
  // An empty share may begin after the end of the tensor.
  return heaps_->at(rank, heap_offset, piece.bytes > 0 ? piece.offset : 0, piece.bytes);
}

void ExchangeData::stage(uint64_t round, Route route) const {
  if (!in_heap())
    fill_slot(round, route);
  auto& progress = segment_->progress_of(rank_);
  progress.route[round % kSlots].store(route, std::memory_order_relaxed);
  progress.heap_offset[round % kSlots].store(heap_offset_, std::memory_order_relaxed);
}

void ExchangeData::fill_slot(uint64_t round, Route route) const {
  char* to = slot(rank_, round);
  if (is_reduction() && !pieces_.replicated()) {
    for (int other = 0; other < ranks_; ++other)
      if (const auto piece = share(other, round); other != rank_)
        copy_by_route(to + other * pieces_.max_piece_bytes(), in(piece.offset), piece.bytes, route);
  } else if (exchange_.kind != Exchange::broadcast || rank_ == exchange_.root) {
    const auto piece = piece_of_tensor(round);
    copy_by_route(to, in(piece.offset), piece.bytes, route);
  }
}

void ExchangeData::write_result(char* to, const char* from, size_t bytes) const {
  if (to != from)
    pieces_.streamed() ? stream(to, from, bytes) : copy_bytes(to, from, bytes);
}

void ExchangeData::copy_own_part(uint64_t round) const {
  const auto piece = piece_of_tensor(round);
  write_result(out(rank_ * exchange_.whole_bytes() + piece.offset), in(piece.offset), piece.bytes);
}

// Returns where the other ranks expect the result of this rank's share, `piece` of the tensor.
std::vector<char*> ExchangeData::result_targets(uint64_t round, const Piece& piece) const {
  std::vector<char*> targets;
  bool any_in_slot = false;
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_)
      continue;
    const size_t heap_offset = heap_offset_of(other, round);
    if (heap_offset != kNotInHeap)
      targets.push_back(in_heap_of(other, heap_offset, piece));
    else
      any_in_slot = true;
  }
  if (any_in_slot)
    targets.push_back(slot(rank_, round) + rank_ * pieces_.max_piece_bytes());
  return targets;
}

void ExchangeData::combine(
    const std::vector<const char*>& sources, char* result, const std::vector<char*>& targets, size_t bytes,
    Route route) const {
  alignas(kCacheLine) char block[kBlockBytes];
  std::vector<const void*> from(ranks_);
  for (size_t at = 0; at < bytes; at += kBlockBytes) {
    const size_t length = std::min(kBlockBytes, bytes - at);
    for (int rank = 0; rank < ranks_; ++rank)
      from[rank] = sources[rank] + at;
    char* to = pieces_.streamed() ? block : result + at;
    combine_(from.data(), ranks_, to, length / size_of(exchange_.number_type));
    if (pieces_.streamed())
      stream(result + at, block, length);
    for (char* target : targets)
      copy_by_route(target + at, to, length, route);
  }
}

void ExchangeData::reduce(uint64_t round) const {
  const bool replicated = pieces_.replicated();
  if (!is_reduction() || (replicated && !has_result()))
    return;
  std::vector<const char*> sources(ranks_);
  const auto piece = replicated ? piece_of_tensor(round) : share(rank_, round);
  const size_t in_slot = replicated ? 0 : rank_ * pieces_.max_piece_bytes();
  for (int rank = 0; rank < ranks_; ++rank)
    sources[rank] = rank == rank_ ? in(piece.offset) : peer_data(rank, round, piece, in_slot);
  const size_t at = exchange_.kind == Exchange::reduce_scatter ? pieces_.offset_in_part(rank_, piece) : piece.offset;
  const bool peers_need_result = exchange_.kind == Exchange::all_reduce && !replicated;
  combine(
      sources, has_result() ? out(at) : slot(rank_, round) + in_slot,
      peers_need_result ? result_targets(round, piece) : std::vector<char*>(), piece.bytes, route_of(rank_, round));
}

void ExchangeData::copy(uint64_t round) const {
  const auto piece = piece_of_tensor(round);
  switch (exchange_.kind) {
    case Exchange::all_gather:
      for (int other = 0; other < ranks_; ++other)
        if (other != rank_)
          write_result(out(other * exchange_.whole_bytes() + piece.offset), peer_data(other, round, piece, 0), piece.bytes);
      break;
    case Exchange::broadcast:
      if (rank_ != exchange_.root)
        copy_bytes(out(piece.offset), slot(exchange_.root, round), piece.bytes);
      break;
    case Exchange::reduce_scatter: break;
    default: // the other ranks write their shares directly to a tensor in this rank's heap
      if (!pieces_.replicated() && has_result() && !in_heap())
        for (int other = 0; other < ranks_; ++other)
          if (const auto peer_share = share(other, round); other != rank_)
            copy_bytes(
                out(peer_share.offset), slot(other, round) + other * pieces_.max_piece_bytes(), peer_share.bytes);
  }
}

} // namespace orch_ccl
