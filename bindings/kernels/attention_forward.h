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

// Buffers of the forward pass of one head.
template <typename E, typename A>
struct ForwardBuffers {
  E *rows, *keys, *values, *queries, *probabilities;
  A *scores, *output;

  ForwardBuffers(Scratch& scratch, const Problem& problem) {
    const int64_t depth = problem.padded_depth(), keys_ = round_up(problem.longest_key, kKeyMultiple);
    const int64_t elements = (std::max(keys_, kColumns) + 2 * keys_ + kColumns) * depth + keys_ * kColumns;
    scratch.reserve(elements * sizeof(E) + (keys_ + depth) * kColumns * sizeof(A) + 1024);
    rows = scratch.take<E>(std::max(keys_, kColumns) * depth);
    keys = scratch.take<E>(keys_ * depth);
    values = scratch.take<E>(keys_ * depth);
    queries = scratch.take<E>(kColumns * depth);
    scores = scratch.take<A>(keys_ * kColumns);
    probabilities = std::is_same_v<E, A> ? reinterpret_cast<E*>(scores) : scratch.take<E>(keys_ * kColumns);
    output = scratch.take<A>(depth * kColumns);
  }
};

// Scales and masks the scores, and returns the maximum of each column.
template <typename A>
ORCH_INLINE void find_maxima(
    const Problem& problem, A* scores, const Bias<A>& bias, int64_t keys, int64_t query, A (&maxima)[kColumns]) {
  std::fill_n(maxima, kColumns, -std::numeric_limits<A>::infinity());
  for (int64_t j = 0; j < keys; ++j) {
    A* __restrict row = scores + j * kColumns;
    mask_row(row, kColumns, static_cast<A>(problem.scale), bias, j, query);
    if (problem.causal)
      mask_causally(row, kColumns, j, query);
    for (int64_t c = 0; c < kColumns; ++c)
      maxima[c] = row[c] > maxima[c] ? row[c] : maxima[c];
  }
  for (int64_t c = 0; c < kColumns; ++c) // all keys masked: the result is 0
    maxima[c] = maxima[c] == -std::numeric_limits<A>::infinity() ? A(0) : maxima[c];
}

// Replaces scores by probabilities times their sum, with dropout, as a right operand.
template <typename E, typename A, bool drop>
ORCH_INLINE void exponentiate(
    const Dropout& dropout, const A* scores, E* probabilities, int64_t keys, int64_t padded_keys, int64_t query,
    const A (&maxima)[kColumns], A (&sums)[kColumns]) {
  std::fill_n(sums, kColumns, A(0));
  const uint32_t threshold = dropout.threshold;
  Block words;
  for (int64_t j = 0; j < keys; j += 2) {
    const A *even = scores + j * kColumns, *odd = even + kColumns;
    E* target = probabilities + j * kColumns;
    const A has_odd = j + 1 < keys ? A(1) : A(0);
    const uint32_t* word = &words[0][0];
    if constexpr (drop)
      dropout.draw(query / kColumns, j / 2, words);
#pragma GCC ivdep
    for (int64_t c = 0; c < kColumns; ++c) {
      A first = exponential(even[c] - maxima[c]), second = has_odd != 0 ? exponential(odd[c] - maxima[c]) : A(0);
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
  std::memset(static_cast<void*>(probabilities + written), 0, (padded_keys * kColumns - written) * sizeof(E));
}

template <typename T, typename E, typename A>
ORCH_INLINE void forward_block(
    const Forward<T>& task, const ForwardBuffers<E, A>& buffers, const Sequence& sequence, int64_t head, int64_t query,
    const Bias<A>& bias, const Dropout& dropout) {
  const auto& problem = *task.problem;
  const int64_t depth = problem.padded_depth();
  const int64_t rows = std::min(kColumns, sequence.queries - query);
  const int64_t keys = problem.causal ? std::min(sequence.keys, query + kColumns) : sequence.keys;
  const int64_t padded_keys = round_up(keys, kKeyMultiple);
  const auto &q = task.query, &out = task.output;
  prefetch_rows(out, sequence.batch, head, sequence.first_query + query, rows, problem.depth);
  copy_rows(
      q.at(sequence.batch, head, sequence.first_query + query), q.row, q.column, rows, problem.depth, buffers.rows,
      kColumns, depth);
  transpose_to_right(buffers.rows, kColumns, depth, buffers.queries, kColumns);
  if (keys > 0) // the matrix kernels need a size
    multiply(
        padded_keys, kColumns, depth, buffers.keys, depth, buffers.queries, kColumns, buffers.scores, kColumns, false);
  A maxima[kColumns], sums[kColumns], factors[kColumns];
  find_maxima(problem, buffers.scores, bias, keys, query, maxima);
  if (problem.p > 0)
    exponentiate<E, A, true>(dropout, buffers.scores, buffers.probabilities, keys, padded_keys, query, maxima, sums);
  else
    exponentiate<E, A, false>(dropout, buffers.scores, buffers.probabilities, keys, padded_keys, query, maxima, sums);
  if (keys > 0)
    multiply(
        depth, kColumns, padded_keys, buffers.values, sequence.padded_keys, buffers.probabilities, kColumns,
        buffers.output, kColumns, false);
  else
    std::fill_n(buffers.output, depth * kColumns, A(0));
  A* stats = static_cast<A*>(task.stats) +
      (sequence.batch * problem.heads + head) * 2 * task.stat_rows + sequence.first_query + query;
  for (int64_t c = 0; c < kColumns; ++c) {
    const A inverse = sums[c] == 0 ? A(0) : 1 / sums[c];
    factors[c] = inverse * static_cast<A>(dropout.scale);
    if (c < rows) {
      stats[c] = maxima[c];
      stats[task.stat_rows + c] = inverse;
    }
  }
  write_columns(
      buffers.output, kColumns, rows, problem.depth, factors,
      out.at(sequence.batch, head, sequence.first_query + query), out.row, out.column);
}

template <typename T, typename E, typename A>
ORCH_INLINE void forward_heads(const Forward<T>& task, int64_t first, int64_t last) {
  const auto& problem = *task.problem;
  const ForwardBuffers<E, A> buffers(thread_scratch(), problem);
  const int64_t depth = problem.padded_depth();
  for (int64_t unit = first; unit < last; ++unit) {
    const int64_t head = unit % problem.heads, kv_head = head / problem.group();
    const Sequence sequence(problem, unit / problem.heads);
    const auto &k = task.key, &v = task.value;
    copy_rows(
        v.at(sequence.batch, kv_head, sequence.first_key), v.row, v.column, sequence.keys, problem.depth, buffers.rows,
        sequence.padded_keys, depth);
    transpose(buffers.rows, sequence.padded_keys, depth, buffers.values, sequence.padded_keys);
    copy_rows(
        k.at(sequence.batch, kv_head, sequence.first_key), k.row, k.column, sequence.keys, problem.depth, buffers.keys,
        sequence.padded_keys, depth);
    const Bias<A> bias(problem, sequence.batch, head);
    const Dropout dropout(problem, unit / problem.heads, head);
    for (int64_t query = 0; query < sequence.queries; query += kColumns)
      forward_block(task, buffers, sequence, head, query, bias, dropout);
  }
  release_matrix_unit();
}

} // namespace orch_attention
