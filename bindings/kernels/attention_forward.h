#pragma once

// The forward pass of attention for a range of heads.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "attention_problem.h"
#include "operands.h"

namespace orch_attention {

template <typename T>
struct Forward {
  const Problem* problem;
  View<const T> query, key, value;
  View<T> output;
  void* stats; // [batch, heads, 2, rows] of the accumulator's type: the maximum and 1 / the sum of each row
  int64_t stat_rows;
};

constexpr int64_t kChunk = 512; // keys whose scores are computed together
constexpr int64_t kBlocks = 4; // of queries, for which the same chunk is used while it is in the L2 cache

// One block of queries. Its sums and output are relative to the maxima of the chunks so far.
template <typename E, typename A>
struct QueryBlock {
  int64_t first, keys; // the first query, and how many keys its queries may see
  E* queries; // right operand
  A* output; // [depth, kColumns]
  A maxima[kColumns], sums[kColumns];
};

// Buffers of the forward pass of one head.
template <typename E, typename A>
struct ForwardBuffers {
  E *rows, *keys, *values, *probabilities; // the values of each chunk are transposed
  A* scores;
  QueryBlock<E, A> blocks[kBlocks];

  ForwardBuffers(Scratch& scratch, const Problem& problem) {
    const int64_t depth = problem.padded_depth(), longest = round_up(problem.longest_key, kKeyMultiple);
    const int64_t chunk = std::min(longest, kChunk), height = std::max(chunk, kColumns);
    const int64_t elements = (height + 2 * longest + kBlocks * kColumns) * depth + chunk * kColumns;
    scratch.reserve(elements * sizeof(E) + (chunk + kBlocks * depth) * kColumns * sizeof(A) + 1024);
    rows = scratch.take<E>(height * depth);
    keys = scratch.take<E>(longest * depth);
    values = scratch.take<E>(longest * depth);
    scores = scratch.take<A>(chunk * kColumns);
    probabilities = std::is_same_v<E, A> ? reinterpret_cast<E*>(scores) : scratch.take<E>(chunk * kColumns);
    for (auto& block : blocks) {
      block.queries = scratch.take<E>(kColumns * depth);
      block.output = scratch.take<A>(depth * kColumns);
    }
  }
};

// Scales and masks the scores of a chunk, updates the maximum of each query, and corrects its sums and output for it.
template <typename E, typename A>
ORCH_INLINE void update_maxima(
    const Problem& problem, QueryBlock<E, A>& block, A* scores, const Bias<A>& bias, int64_t first, int64_t keys) {
  constexpr A kNone = -std::numeric_limits<A>::infinity();
  A previous[kColumns], corrections[kColumns];
  std::copy_n(block.maxima, kColumns, previous);
  A* __restrict maxima = block.maxima;
  for (int64_t j = 0; j < keys; ++j) {
    A* __restrict row = scores + j * kColumns;
    mask_row(row, kColumns, static_cast<A>(problem.scale), bias, first + j, block.first);
    if (problem.causal)
      mask_causally(row, kColumns, first + j, block.first);
    for (int64_t c = 0; c < kColumns; ++c)
      maxima[c] = row[c] > maxima[c] ? row[c] : maxima[c];
  }
  if (first == 0 || std::equal(previous, previous + kColumns, maxima))
    return;
  for (int64_t c = 0; c < kColumns; ++c) {
    corrections[c] = previous[c] == kNone ? A(0) : exponential(previous[c] - maxima[c]);
    block.sums[c] *= corrections[c];
  }
  for (int64_t d = 0; d < problem.padded_depth(); ++d)
    for (int64_t c = 0; c < kColumns; ++c)
      block.output[d * kColumns + c] *= corrections[c];
}

// Replaces scores by probabilities times their sum, with dropout, as a right operand, and adds to the sums.
template <typename E, typename A, bool drop>
ORCH_INLINE void exponentiate(
    const Dropout& dropout, const ForwardBuffers<E, A>& buffers, QueryBlock<E, A>& block, int64_t first_key,
    int64_t keys, int64_t padded_keys) {
  constexpr A kNone = -std::numeric_limits<A>::infinity();
  const uint32_t threshold = dropout.threshold;
  A shifts[kColumns];
  A* __restrict sums = block.sums;
  for (int64_t c = 0; c < kColumns; ++c) // all keys masked: their probabilities are 0
    shifts[c] = block.maxima[c] == kNone ? A(0) : block.maxima[c];
  Block words;
  for (int64_t j = 0; j < keys; j += 2) {
    const A *even = buffers.scores + j * kColumns, *odd = even + kColumns;
    E* target = buffers.probabilities + j * kColumns;
    const A has_odd = j + 1 < keys ? A(1) : A(0);
    const uint32_t* word = &words[0][0];
    if constexpr (drop)
      dropout.draw(block.first / kColumns, (first_key + j) / 2, words);
#pragma GCC ivdep
    for (int64_t c = 0; c < kColumns; ++c) {
      A first = exponential(even[c] - shifts[c]), second = has_odd != 0 ? exponential(odd[c] - shifts[c]) : A(0);
      sums[c] += first + second;
      if constexpr (drop) {
        first = (word[c] & 0xffff) >= threshold ? first : A(0);
        second = (word[c] >> 16) >= threshold ? second : A(0);
      }
      if constexpr (in_pairs<E>) {
        store_pair(reinterpret_cast<uint32_t*>(target), c, first, second);
      } else {
        target[c] = first;
        target[kColumns + c] = second;
      }
    }
  }
  const int64_t written = round_up(keys, 2) * kColumns;
  std::memset(static_cast<void*>(buffers.probabilities + written), 0, (padded_keys * kColumns - written) * sizeof(E));
}

// Adds the keys and values of the chunk from `first` on to a block.
template <typename E, typename A>
ORCH_INLINE void add_chunk(
    const Problem& problem, const ForwardBuffers<E, A>& buffers, QueryBlock<E, A>& block, const Sequence& sequence,
    const Bias<A>& bias, const Dropout& dropout, int64_t first) {
  const int64_t depth = problem.padded_depth(), keys = std::min(kChunk, block.keys - first);
  const int64_t padded_keys = round_up(keys, kKeyMultiple), stride = std::min(kChunk, sequence.padded_keys - first);
  multiply(
      padded_keys, kColumns, depth, buffers.keys + first * depth, depth, block.queries, kColumns, buffers.scores,
      kColumns, false);
  update_maxima(problem, block, buffers.scores, bias, first, keys);
  if (problem.p > 0)
    exponentiate<E, A, true>(dropout, buffers, block, first, keys, padded_keys);
  else
    exponentiate<E, A, false>(dropout, buffers, block, first, keys, padded_keys);
  multiply(
      depth, kColumns, padded_keys, buffers.values + first * depth, stride, buffers.probabilities, kColumns,
      block.output, kColumns, first > 0);
}

template <typename T, typename E, typename A>
ORCH_INLINE void begin_block(
    const Forward<T>& task, const ForwardBuffers<E, A>& buffers, QueryBlock<E, A>& block, const Sequence& sequence,
    int64_t head, int64_t first) {
  const auto& problem = *task.problem;
  const auto &q = task.query, &out = task.output;
  const int64_t depth = problem.padded_depth(), rows = std::min(kColumns, sequence.queries - first);
  block.first = first;
  block.keys = problem.causal ? std::min(sequence.keys, first + kColumns) : sequence.keys;
  prefetch_rows(out, sequence.batch, head, sequence.first_query + first, rows, problem.depth);
  copy_rows(
      q.at(sequence.batch, head, sequence.first_query + first), q.row, q.column, rows, problem.depth, buffers.rows,
      kColumns, depth);
  transpose_to_right(buffers.rows, kColumns, depth, block.queries, kColumns);
  std::fill_n(block.maxima, kColumns, -std::numeric_limits<A>::infinity());
  std::fill_n(block.sums, kColumns, A(0));
  if (block.keys == 0)
    std::fill_n(block.output, depth * kColumns, A(0));
}

template <typename T, typename E, typename A>
ORCH_INLINE void end_block(
    const Forward<T>& task, const QueryBlock<E, A>& block, const Sequence& sequence, int64_t head, A dropout_scale) {
  const auto& problem = *task.problem;
  const auto& out = task.output;
  const int64_t query = sequence.first_query + block.first, rows = std::min(kColumns, sequence.queries - block.first);
  A* stats = static_cast<A*>(task.stats) +
      (sequence.batch * problem.heads + head) * 2 * task.stat_rows + query;
  A factors[kColumns];
  for (int64_t c = 0; c < kColumns; ++c) {
    const A inverse = block.sums[c] == 0 ? A(0) : 1 / block.sums[c];
    factors[c] = inverse * dropout_scale;
    if (c < rows) {
      stats[c] = block.sums[c] == 0 ? A(0) : block.maxima[c];
      stats[task.stat_rows + c] = inverse;
    }
  }
  write_columns(
      block.output, kColumns, rows, problem.depth, factors, out.at(sequence.batch, head, query), out.row, out.column);
}

// Copies the keys, and transposes the values chunk by chunk.
template <typename T, typename E, typename A>
ORCH_INLINE void load_keys(
    const Forward<T>& task, const ForwardBuffers<E, A>& buffers, const Sequence& sequence, int64_t kv_head) {
  const int64_t columns = task.problem->depth, depth = task.problem->padded_depth();
  const auto &k = task.key, &v = task.value;
  copy_rows(
      k.at(sequence.batch, kv_head, sequence.first_key), k.row, k.column, sequence.keys, columns, buffers.keys,
      sequence.padded_keys, depth);
  for (int64_t first = 0; first < sequence.padded_keys; first += kChunk) {
    const int64_t length = std::min(kChunk, sequence.padded_keys - first);
    copy_rows(
        v.at(sequence.batch, kv_head, sequence.first_key + first), v.row, v.column,
        std::min(length, sequence.keys - first), columns, buffers.rows, length, depth);
    transpose(buffers.rows, length, depth, buffers.values + first * depth, length);
  }
}

template <typename T, typename E, typename A>
ORCH_INLINE void forward_heads(const Forward<T>& task, int64_t first, int64_t last) {
  const auto& problem = *task.problem;
  ForwardBuffers<E, A> buffers(thread_scratch(), problem);
  for (int64_t unit = first; unit < last; ++unit) {
    const int64_t head = unit % problem.heads;
    const Sequence sequence(problem, unit / problem.heads);
    load_keys(task, buffers, sequence, head / problem.group());
    const Bias<A> bias(problem, sequence.batch, head);
    const Dropout dropout(problem, unit / problem.heads, head);
    const int64_t step = sequence.keys > kChunk ? kBlocks * kColumns : kColumns;
    for (int64_t query = 0; query < sequence.queries; query += step) {
      const int64_t blocks = round_up(std::min(step, sequence.queries - query), kColumns) / kColumns;
      for (int64_t i = 0; i < blocks; ++i)
        begin_block(task, buffers, buffers.blocks[i], sequence, head, query + i * kColumns);
      for (int64_t key = 0; key < sequence.keys; key += kChunk)
        for (int64_t i = 0; i < blocks; ++i)
          if (key < buffers.blocks[i].keys)
            add_chunk(problem, buffers, buffers.blocks[i], sequence, bias, dropout, key);
      for (int64_t i = 0; i < blocks; ++i)
        end_block(task, buffers.blocks[i], sequence, head, static_cast<A>(dropout.scale));
    }
  }
  release_matrix_unit();
}

} // namespace orch_attention
