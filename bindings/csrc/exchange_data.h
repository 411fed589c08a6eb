#pragma once

#include <memory>
#include <vector>

#include "exchange.h"
#include "heap.h"
#include "shared_segment.h"

namespace orch_ccl {

// Moves and combines one rank's data in the rounds of an exchange. Rounds are numbered from the group's first one. The
// caller (Transfer, under the engine's lock) ensures that the data is there and that nobody still reads what is
// overwritten. A heap offset that another rank has written to the segment is checked at each use: stage(), reduce() and
// copy() throw InvalidHeapOffset.
class ExchangeData {
 public:
  // `heap_offset`: of this rank's tensor in its heap, or kNotInHeap. `first`: the exchange's first round.
  ExchangeData(
      std::shared_ptr<Segment> segment, std::shared_ptr<const Heaps> heaps, int rank, const Exchange& exchange,
      size_t heap_offset, uint64_t first);

  const Exchange& exchange() const { return exchange_; }
  const Pieces& pieces() const { return pieces_; }
  bool is_reduction() const { return orch_ccl::is_reduction(exchange_); }
  // This rank receives the result, or its part of it.
  bool has_result() const { return exchange_.kind != Exchange::reduce || rank_ == exchange_.root; }
  // The other ranks read this rank's tensor in place.
  bool in_heap() const { return heap_offset_ != kNotInHeap; }

  // The three phases of a round; see SharedExchanges.
  void stage(uint64_t round, Route route) const;
  void reduce(uint64_t round) const;
  void copy(uint64_t round) const;
  // For all_gather: copies this rank's input to its own result.
  void copy_own_part(uint64_t round) const;

  // What a rank has announced for a staged round: the route of its data, and whether the data is in its heap.
  Route route_of(int rank, uint64_t round) const;
  bool in_heap(int rank, uint64_t round) const { return heap_offset_of(rank, round) != kNotInHeap; }
  // The size of this rank's piece in a round.
  size_t bytes_in(uint64_t round) const;

 private:
  using Piece = Pieces::Piece;

  void fill_slot(uint64_t round, Route route) const;
  std::vector<char*> result_targets(uint64_t round, const Piece& piece) const;
  void combine(
      const std::vector<const char*>& sources, char* result, const std::vector<char*>& targets, size_t bytes,
      Route route) const;
  void write_result(char* to, const char* from, size_t bytes) const;
  size_t heap_offset_of(int rank, uint64_t round) const;
  char* in_heap_of(int rank, size_t heap_offset, const Piece& piece) const;
  const char* peer_data(int rank, uint64_t round, const Piece& piece, size_t in_slot) const;

  Piece share(int rank, uint64_t round) const { return pieces_.share(rank, round - first_); }
  Piece piece_of_tensor(uint64_t round) const { return pieces_.piece_of_tensor(round - first_); }
  const char* in(size_t offset) const { return static_cast<const char*>(exchange_.in) + offset; }
  char* out(size_t offset) const { return static_cast<char*>(exchange_.out) + offset; }
  char* slot(int rank, uint64_t round) const { return segment_->slot(rank, round); }

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<const Heaps> heaps_;
  const int rank_, ranks_;
  const Exchange exchange_;
  const Pieces pieces_;
  const size_t heap_offset_;
  const Combiner combine_;
  const uint64_t first_;
};

} // namespace orch_ccl
