#pragma once

#include <memory>
#include <vector>

#include "exchange.h"
#include "heap.h"
#include "shared_segment.h"

namespace orch_ccl {

// What a rank does with data in the rounds of an exchange, which are counted from the group's first one; others see to it
// that what it reads is there, and that nobody reads any more what it writes. A place that another rank has written to
// the segment is checked at each use: stage(), reduce() and copy() raise InvalidPlace.
class ExchangeData {
 public:
  // `place`: of this rank's tensor in its heap, or kNowhere. `first`: the exchange's first round.
  ExchangeData(
      std::shared_ptr<Segment> segment, std::shared_ptr<const Heaps> heaps, int rank, const Exchange& exchange,
      size_t place, uint64_t first);

  const Exchange& exchange() const { return exchange_; }
  const Pieces& pieces() const { return pieces_; }
  bool reduces() const { return orch_ccl::reduces(exchange_); }
  // The result, or its part of it.
  bool receives() const { return exchange_.kind != Exchange::reduce || rank_ == exchange_.root; }
  // The others read its tensor where it is.
  bool in_heap() const { return place_ != kNowhere; }

  void stage(uint64_t round, Route by) const;
  void reduce(uint64_t round) const;
  void copy(uint64_t round) const;
  // What a rank gives to an all_gather is in its result, too.
  void keep(uint64_t round) const;

  // What is told of a round that is staged: how its data goes, and whether it is in its rank's heap.
  Route route_of(int rank, uint64_t round) const;
  bool in_heap(int rank, uint64_t round) const { return place_of(rank, round) != kNowhere; }
  // Of this rank's part in a round.
  size_t bytes_in(uint64_t round) const;

 private:
  using Piece = Pieces::Piece;

  void fill_slot(uint64_t round, Route by) const;
  std::vector<char*> takers(uint64_t round, const Piece& piece) const;
  void combine(const std::vector<const char*>& sources, char* result, const std::vector<char*>& takers, size_t bytes, Route by)
      const;
  void deliver(char* to, const char* from, size_t bytes) const;
  size_t place_of(int rank, uint64_t round) const;
  char* in_heap_of(int rank, size_t place, const Piece& piece) const;
  const char* given(int rank, uint64_t round, const Piece& piece, size_t in_slot) const;

  Piece share(int rank, uint64_t round) const { return pieces_.share(rank, round - first_); }
  Piece whole(uint64_t round) const { return pieces_.whole(round - first_); }
  const char* in(size_t at) const { return static_cast<const char*>(exchange_.in) + at; }
  char* out(size_t at) const { return static_cast<char*>(exchange_.out) + at; }
  char* slot(int rank, uint64_t round) const { return segment_->slot(rank, round); }

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<const Heaps> heaps_;
  const int rank_, ranks_;
  const Exchange exchange_;
  const Pieces pieces_;
  const size_t place_;
  const Combiner combine_;
  const uint64_t first_;
};

} // namespace orch_ccl
