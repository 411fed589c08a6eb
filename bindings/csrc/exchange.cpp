#include "exchange.h"

#include <algorithm>

#include <unistd.h>

namespace orch_ccl {
namespace {

// Whole tensors this short are combined by every rank: one wait for the others instead of two.
constexpr size_t kShort = 16 * 1024;
// Messages of medium length are cut so that the ranks work at the same time.
constexpr size_t kRoundsAtLeast = 4;
// Where the system does not know the third-level cache.
constexpr size_t kUsualCache = 32 * 1024 * 1024;

// More than this, read and written by all ranks, is out of the cache before anybody reads the result.
size_t cached_bytes() {
  static const long known = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return known > 0 ? static_cast<size_t>(known) : kUsualCache;
}

size_t divided(size_t bytes, size_t by) {
  return (bytes + by - 1) / by;
}

size_t aligned(size_t bytes) {
  return divided(bytes, kAligned) * kAligned;
}

} // namespace

bool reduces(const Exchange& exchange) {
  return exchange.kind <= Exchange::reduce_scatter;
}

Pieces::Pieces(const Exchange& exchange, int ranks, size_t slot_bytes) : tensor_(exchange.bytes), piece_(slot_bytes) {
  const bool scatters = exchange.kind == Exchange::reduce_scatter;
  size_t length = exchange.bytes;
  if (reduces(exchange)) {
    together_ = !scatters && length <= std::min(kShort, piece_);
    if (!together_) {
      part_ = scatters ? length : aligned(divided(length, ranks));
      tensor_ = scatters ? length * ranks : length;
      length = part_;
      piece_ /= ranks;
    }
  }
  const size_t cut = std::max(kShortestShare, aligned(divided(length, kRoundsAtLeast)));
  piece_ = std::min(piece_, cut);
  rounds_ = std::max<size_t>(1, divided(length, piece_));
  streamed_ = (scatters || exchange.kind == Exchange::all_gather) && exchange.bytes * (ranks + 1) * ranks > cached_bytes();
}

Pieces::Piece Pieces::share(int rank, uint64_t round) const {
  const size_t begin = rank * part_;
  const size_t end = std::min(begin + part_, tensor_);
  const size_t at = std::min(begin + round * piece_, std::max(begin, end));
  return {at, end > at ? std::min(piece_, end - at) : 0};
}

Pieces::Piece Pieces::whole(uint64_t round) const {
  const size_t at = round * piece_;
  return {at, std::min(piece_, tensor_ - at)};
}

} // namespace orch_ccl
