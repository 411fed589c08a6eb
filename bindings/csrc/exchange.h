#pragma once

#include <cstddef>
#include <cstdint>

#include "combiner.h"

namespace orch_ccl {

// What a rank asks of the others on its host.
struct Exchange {
  enum Kind : uint8_t { all_reduce, reduce, reduce_scatter, all_gather, broadcast };
  static constexpr int kKinds = 5;
  Kind kind;
  const void* in = nullptr;
  void* out = nullptr; // may be `in`, where they are of one size
  size_t bytes = 0; // of the tensor; of reduce_scatter and all_gather, of each rank's part of it
  int root = 0;
  Number number = Number::uint8;
  Combine by = Combine::sum;
};

constexpr size_t kAligned = 64; // a cache line
// Messages of medium length are cut into pieces no shorter than this: more waits for each other would cost more.
constexpr size_t kShortestShare = 16 * 1024;

// An exchange, cut into rounds, which are counted from 0.
class Pieces {
 public:
  struct Piece {
    size_t at = 0, bytes = 0; // in the tensor
  };

  // `slot_bytes`: what a rank can give to the others in a round.
  Pieces(const Exchange& exchange, int ranks, size_t slot_bytes);

  uint64_t rounds() const { return rounds_; }
  // Of a rank's share in a round, or of the tensor where nothing is reduced.
  size_t longest() const { return piece_; }
  // So short that each rank combines all of it.
  bool together() const { return together_; }
  // So long that the result goes past the caches.
  bool streamed() const { return streamed_; }
  // What a rank combines of a reduction.
  Piece share(int rank, uint64_t round) const;
  // Where share() is in that rank's part of a reduce_scatter.
  size_t in_part(int rank, const Piece& piece) const { return piece.at - rank * part_; }
  Piece whole(uint64_t round) const;

 private:
  size_t part_ = 0; // bytes of the tensor that each rank reduces
  size_t tensor_; // bytes of it
  size_t piece_;
  uint64_t rounds_;
  bool together_ = false, streamed_;
};

bool reduces(const Exchange& exchange);

} // namespace orch_ccl
