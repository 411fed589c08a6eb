#pragma once

// What the forward and the backward pass of attention have in common: sequences, masks, dropout, and the exponential.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ATen/ATen.h>

#include "elementwise.h"
#include "operands.h"
#include "threefry.h"

namespace orch_attention {

using orch_dropout::Block;
using orch_dropout::threefry;
using orch_elementwise::exponential;

constexpr int64_t kColumns = 64; // queries per block: one random word each for a pair of keys
constexpr int64_t kKeyMultiple = 32; // lengths are padded to multiples, so that few matrix kernels are generated
constexpr int64_t kDepthMultiple = 16;

// What the forward and the backward pass have in common. One sequence is one entry of the batch, or the rows between
// two offsets.
struct Problem {
  int64_t sequences, heads, kv_heads, depth;
  int64_t longest_query, longest_key; // of all sequences
  const int64_t* query_offsets; // [sequences + 1], or null: each sequence is one entry of the batch
  const int64_t* key_offsets;
  bool causal;
  double scale, p;
  uint64_t seed;
  at::Tensor key_bias; // [batch or 1, heads or 1, padded keys], or undefined: the same for all queries
  at::Tensor bias; // [batch or 1, heads or 1, keys, padded queries], or undefined

  int64_t group() const {
    return heads / kv_heads;
  }
  int64_t padded_depth() const {
    return round_up(depth, kDepthMultiple);
  }
};

// One sequence of a problem.
struct Sequence {
  int64_t batch, first_query, queries, first_key, keys, padded_queries, padded_keys;

  Sequence(const Problem& problem, int64_t index) : batch(index), first_query(0), first_key(0) {
    queries = problem.longest_query;
    keys = problem.longest_key;
    if (problem.query_offsets) {
      batch = 0;
      first_query = problem.query_offsets[index];
      first_key = problem.key_offsets[index];
      queries = problem.query_offsets[index + 1] - first_query;
      keys = problem.key_offsets[index + 1] - first_key;
    }
    padded_queries = round_up(queries, kColumns);
    padded_keys = round_up(keys, kKeyMultiple);
  }
};

// The additive masks of one head.
template <typename A>
struct Bias {
  const A* by_key = nullptr;
  const A* scores = nullptr; // [keys, row]
  int64_t row = 0;

  Bias(const Problem& problem, int64_t batch, int64_t head) {
    const auto slice = [&](const at::Tensor& t) {
      return static_cast<const A*>(t.data_ptr()) + (t.size(0) > 1 ? batch : 0) * t.stride(0) +
          (t.size(1) > 1 ? head : 0) * t.stride(1);
    };
    if (problem.key_bias.defined())
      by_key = slice(problem.key_bias);
    if (problem.bias.defined()) {
      scores = slice(problem.bias);
      row = problem.bias.stride(2);
    }
  }
};

inline uint32_t dropout_threshold(double p) {
  return static_cast<uint32_t>(std::min(std::nearbyint(std::ldexp(p, 16)), 65535.0));
}

// Corresponds to the rounded probability, so that the expected output is exact.
inline double dropout_scale(double p) {
  return 65536.0 / (65536.0 - dropout_threshold(p));
}

// The dropout of one head. The counters of different heads and blocks of queries do not overlap.
struct Dropout {
  uint64_t seed, first_counter, pairs; // pairs of keys per block of queries
  uint32_t threshold; // scores whose 16 random bits are smaller are dropped
  double scale;

  Dropout(const Problem& problem, int64_t sequence, int64_t head) : seed(problem.seed) {
    threshold = dropout_threshold(problem.p);
    scale = dropout_scale(problem.p);
    const int64_t blocks = round_up(problem.longest_query, kColumns) / kColumns;
    pairs = round_up(problem.longest_key, kKeyMultiple) / 2;
    first_counter = static_cast<uint64_t>(sequence * problem.heads + head) * blocks * pairs;
  }

  ORCH_INLINE void draw(int64_t block, int64_t pair, Block& words) const {
    threefry(seed, (first_counter + block * pairs + pair) * orch_dropout::kLanes, words);
  }
};

// ---- Elementwise functions -----------------------------------------------------------------------------------------

template <typename T, typename A>
ORCH_INLINE A inner_product(const T* a, int64_t a_stride, const T* b, int64_t b_stride, int64_t count) {
  A sum = 0;
  if (a_stride == 1 && b_stride == 1)
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i)
      sum += static_cast<A>(a[i]) * static_cast<A>(b[i]);
  else
    for (int64_t i = 0; i < count; ++i)
      sum += static_cast<A>(a[i * a_stride]) * static_cast<A>(b[i * b_stride]);
  return sum;
}

// The bits of a BF16 number in the upper half of the word, rounded to nearest, and halves away from zero: with half as
// many instructions as to even.
ORCH_INLINE uint32_t nearest_bits(float x) {
  return std::bit_cast<uint32_t>(x) + 0x8000;
}

// Stores two rows of scores as a right operand.
ORCH_INLINE void store_pair(uint32_t* pairs, int64_t c, float even, float odd) {
  pairs[c] = nearest_bits(even) >> 16 | (nearest_bits(odd) & 0xffff0000);
}

// Adds the masks to the scaled scores of one key.
template <typename A>
ORCH_INLINE void mask_row(
    A* __restrict scores, int64_t count, A scale, const Bias<A>& bias, int64_t key, int64_t query) {
  const A shift = bias.by_key ? bias.by_key[key] : A(0);
  if (bias.scores) {
    const A* __restrict added = bias.scores + key * bias.row + query;
    for (int64_t c = 0; c < count; ++c)
      scores[c] = scores[c] * scale + added[c] + shift;
  } else {
    for (int64_t c = 0; c < count; ++c)
      scores[c] = scores[c] * scale + shift;
  }
}

// Masks the queries before `key`.
template <typename A>
ORCH_INLINE void mask_causally(A* scores, int64_t count, int64_t key, int64_t query) {
  const int64_t masked = std::clamp<int64_t>(key - query, 0, count);
  for (int64_t c = 0; c < masked; ++c)
    scores[c] = -std::numeric_limits<A>::infinity();
}

} // namespace orch_attention
