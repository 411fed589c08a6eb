#pragma once

#include <cstddef>
#include <cstdint>

#include "combiner.h"

namespace orch_ccl {

// A collective among the ranks of one host, through shared memory.
struct Exchange {
  enum Kind : uint8_t { all_reduce, reduce, reduce_scatter, all_gather, broadcast };
  static constexpr int kKinds = 5;
  Kind kind;
  const void* in = nullptr;
  void* out = nullptr; // may equal `in` if both have the same size
  size_t bytes = 0; // of the tensor; for reduce_scatter and all_gather, of each rank's part
  int root = 0;
  NumberType number_type = NumberType::uint8;
  CombineOp op = CombineOp::sum;
  bool average = false; // its caller divides the result afterwards; the ranks compare this, too
  // `bytes` of the whole call, of which this exchange may be a stripe (see SharedExchanges); 0: it is the whole call.
  size_t bytes_of_call = 0;

  size_t whole_bytes() const { return bytes_of_call > 0 ? bytes_of_call : bytes; }
};

constexpr size_t kCacheLine = 64; // bytes
// Shorter pieces cost more, because the ranks wait for each other in each round.
constexpr size_t kMinPieceBytes = 16 * 1024;

// Divides an exchange into rounds, which count from 0. Immutable.
class Pieces {
 public:
  struct Piece {
    size_t offset = 0, bytes = 0; // within the tensor
  };

  // `slot_bytes`: how much a rank can pass to the others through its slot in one round.
  Pieces(const Exchange& exchange, int ranks, size_t slot_bytes);

  uint64_t rounds() const { return rounds_; }
  // The longest share() of a reduction, or piece_of_tensor() of another exchange.
  size_t max_piece_bytes() const { return max_piece_bytes_; }
  // The tensor is so short that each rank reduces all of it.
  bool replicated() const { return replicated_; }
  // The tensor is so long that the result bypasses the caches.
  bool streamed() const { return streamed_; }
  // The piece that a rank reduces in a round.
  Piece share(int rank, uint64_t round) const;
  // The offset of share() in that rank's part of a reduce_scatter.
  size_t offset_in_part(int rank, const Piece& piece) const { return piece.offset - rank * part_distance_; }
  // The piece that a round moves if nothing is reduced, or if each rank reduces all of the tensor.
  Piece piece_of_tensor(uint64_t round) const;

 private:
  size_t part_bytes_ = 0; // how much of the tensor each rank reduces
  size_t part_distance_ = 0; // from the beginning of a rank's part to that of the next
  size_t tensor_bytes_;
  size_t max_piece_bytes_;
  uint64_t rounds_;
  bool replicated_ = false, streamed_;
};

bool is_reduction(const Exchange& exchange);
// Returns the number of stripes into which to divide an exchange, at most `max_stripes`.
int count_stripes(const Exchange& exchange, int max_stripes);
// Returns a stripe of an exchange: a part of the tensor, or the same part of the part of each rank.
Exchange stripe_of(const Exchange& exchange, int stripe, int stripes);

} // namespace orch_ccl
