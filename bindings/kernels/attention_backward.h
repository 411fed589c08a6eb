#pragma once

// The backward pass of attention for a range of heads of keys, each with its heads of queries.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "attention_problem.h"
#include "operands.h"

namespace orch_attention {

// The most keys and queries of a block, which bound its memory.
struct BlockSize {
  int64_t keys, queries;

  // Large products are faster with AMX. With a causal mask and few keys, most scores of large blocks would be masked.
  template <typename E>
  static BlockSize of(const Problem& problem) {
    const bool is_large = in_pairs<E> && has_matrix_unit() && (!problem.causal || problem.longest_key > 512);
    return is_large ? BlockSize{256, 256} : BlockSize{64, 512};
  }
};

template <typename T>
struct Backward {
  const Problem* problem;
  View<const T> query, key, value, output, gradient;
  View<T> query_gradient, key_gradient, value_gradient;
  const void* stats;
  int64_t stat_rows;
};

// Buffers of the backward pass of one head.
template <typename E, typename A>
struct BackwardBuffers {
  E *rows, *keys, *values, *keys_transposed; // of a sequence
  E *queries_transposed, *gradients_transposed, *queries, *gradients; // right operands
  E *dropped, *score_gradients, *score_gradients_right; // of a block
  A *scores, *probability_gradients; // of a block
  A *key_gradient, *value_gradient, *query_gradient;
  A *maxima, *inverses, *deltas; // per query
  BlockSize size;

  static constexpr bool kSame = std::is_same_v<E, A>;

  BackwardBuffers(Scratch& scratch, const Problem& problem) : size(BlockSize::of<E>(problem)) {
    const int64_t depth = problem.padded_depth(), longest_keys = round_up(problem.longest_key, kKeyMultiple);
    const int64_t longest_queries = round_up(problem.longest_query, kColumns);
    const int64_t block = std::min(size.keys, longest_keys) * std::min(size.queries, longest_queries);
    const int64_t elements = (std::max(longest_keys, longest_queries) + 3 * longest_keys + 4 * longest_queries) * depth;
    scratch.reserve(
        (elements + 3 * block) * sizeof(E) +
        (2 * block + (2 * longest_keys + longest_queries) * depth + 3 * longest_queries) * sizeof(A) + 2048);
    rows = scratch.take<E>(std::max(longest_keys, longest_queries) * depth);
    for (E** part : {&keys, &values, &keys_transposed})
      *part = scratch.take<E>(longest_keys * depth);
    for (E** part : {&queries_transposed, &gradients_transposed, &queries, &gradients})
      *part = scratch.take<E>(longest_queries * depth);
    for (A** part : {&scores, &probability_gradients})
      *part = scratch.take<A>(block);
    dropped = kSame ? reinterpret_cast<E*>(scores) : scratch.take<E>(block);
    score_gradients = kSame ? reinterpret_cast<E*>(probability_gradients) : scratch.take<E>(block);
    score_gradients_right = in_pairs<E> ? scratch.take<E>(block) : score_gradients;
    for (A** part : {&key_gradient, &value_gradient})
      *part = scratch.take<A>(longest_keys * depth);
    query_gradient = scratch.take<A>(longest_queries * depth);
    for (A** part : {&maxima, &inverses, &deltas})
      *part = scratch.take<A>(longest_queries);
  }
};

// A block of the backward pass: keys x queries.
struct Range {
  int64_t key, keys, padded_keys, query, queries;
};

// Computes the dropped probabilities and the gradients of the scores from the scores and the gradients of the dropped
// probabilities, for two keys and kColumns queries.
template <typename E, typename A, bool drop>
ORCH_INLINE void differentiate_pair(
    const BackwardBuffers<E, A>& buffers, const uint32_t* word, uint32_t threshold, A dropout_scale, A scale,
    int64_t key, int64_t column, int64_t stride, int64_t query) {
  const int64_t offset = key * stride + column;
  const A *__restrict maxima = buffers.maxima + query, *__restrict inverses = buffers.inverses + query,
          *__restrict deltas = buffers.deltas + query;
  const A *even = buffers.scores + offset, *odd = even + stride;
  const A *even_gradient = buffers.probability_gradients + offset, *odd_gradient = even_gradient + stride;
  E *even_dropped = buffers.dropped + offset, *odd_dropped = even_dropped + stride;
  E *even_result = buffers.score_gradients + offset, *odd_result = even_result + stride;
#pragma GCC ivdep
  for (int64_t c = 0; c < kColumns; ++c) {
    const A first = exponential(even[c] - maxima[c]) * inverses[c];
    const A second = exponential(odd[c] - maxima[c]) * inverses[c];
    A first_factor = dropout_scale, second_factor = dropout_scale;
    if constexpr (drop) {
      first_factor = (word[c] & 0xffff) >= threshold ? dropout_scale : A(0);
      second_factor = (word[c] >> 16) >= threshold ? dropout_scale : A(0);
    }
    const A first_result = first * (even_gradient[c] * first_factor - deltas[c]) * scale;
    const A second_result = second * (odd_gradient[c] * second_factor - deltas[c]) * scale;
    if constexpr (in_pairs<E>) {
      const uint32_t first_bits = nearest_bits(first * first_factor);
      const uint32_t second_bits = nearest_bits(second * second_factor);
      const uint32_t first_gradient = nearest_bits(first_result), second_gradient = nearest_bits(second_result);
      reinterpret_cast<uint16_t*>(even_dropped)[c] = static_cast<uint16_t>(first_bits >> 16);
      reinterpret_cast<uint16_t*>(odd_dropped)[c] = static_cast<uint16_t>(second_bits >> 16);
      reinterpret_cast<uint16_t*>(even_result)[c] = static_cast<uint16_t>(first_gradient >> 16);
      reinterpret_cast<uint16_t*>(odd_result)[c] = static_cast<uint16_t>(second_gradient >> 16);
      reinterpret_cast<uint32_t*>(buffers.score_gradients_right + offset + column)[c] =
          first_gradient >> 16 | (second_gradient & 0xffff0000);
    } else {
      even_dropped[c] = first * first_factor;
      odd_dropped[c] = second * second_factor;
      even_result[c] = first_result;
      odd_result[c] = second_result;
    }
  }
}

template <typename E, typename A, bool drop>
ORCH_INLINE void differentiate(
    const Problem& problem, const BackwardBuffers<E, A>& buffers, const Bias<A>& bias, const Dropout& dropout,
    const Range& range) {
  const A scale = static_cast<A>(problem.scale), dropout_scale = static_cast<A>(dropout.scale);
  Block words;
  for (int64_t j = 0; j < range.padded_keys; ++j) {
    A* row = buffers.scores + j * range.queries;
    if (j < range.keys) {
      mask_row(row, range.queries, scale, bias, range.key + j, range.query);
      if (problem.causal)
        mask_causally(row, range.queries, range.key + j, range.query);
    } else {
      std::fill_n(row, range.queries, -std::numeric_limits<A>::infinity());
    }
  }
  for (int64_t j = 0; j < range.padded_keys; j += 2)
    for (int64_t c = 0; c < range.queries; c += kColumns) {
      if constexpr (drop)
        dropout.draw((range.query + c) / kColumns, (range.key + j) / 2, words);
      differentiate_pair<E, A, drop>(
          buffers, &words[0][0], dropout.threshold, dropout_scale, scale, j, c, range.queries, range.query + c);
    }
}

// Adds the gradients of one block of keys and queries.
template <typename E, typename A>
ORCH_INLINE void backward_block(
    const Problem& problem, const BackwardBuffers<E, A>& buffers, const Sequence& sequence, const Bias<A>& bias,
    const Dropout& dropout, const Range& range, bool first_of_keys, bool first_of_queries) {
  const int64_t depth = problem.padded_depth(), pair = in_pairs<E> ? 2 : 1;
  const int64_t n = range.queries, m = range.padded_keys, length = sequence.padded_queries;
  multiply(
      m, n, depth, buffers.keys + range.key * depth, depth, buffers.queries_transposed + range.query * pair, length,
      buffers.scores, n, false);
  multiply(
      m, n, depth, buffers.values + range.key * depth, depth, buffers.gradients_transposed + range.query * pair, length,
      buffers.probability_gradients, n, false);
  if (problem.p > 0)
    differentiate<E, A, true>(problem, buffers, bias, dropout, range);
  else
    differentiate<E, A, false>(problem, buffers, bias, dropout, range);
  multiply(
      m, depth, n, buffers.dropped, n, buffers.gradients + range.query * depth, depth,
      buffers.value_gradient + range.key * depth, depth, !first_of_keys);
  multiply(
      m, depth, n, buffers.score_gradients, n, buffers.queries + range.query * depth, depth,
      buffers.key_gradient + range.key * depth, depth, !first_of_keys);
  multiply(
      depth, n, m, buffers.keys_transposed + range.key, sequence.padded_keys, buffers.score_gradients_right, n,
      buffers.query_gradient + range.query, length, !first_of_queries);
}

// Prepares the operands of one head: queries, output gradients, and what the softmax needs per query.
template <typename T, typename E, typename A>
ORCH_INLINE void load_queries(
    const Backward<T>& task, const BackwardBuffers<E, A>& buffers, const Sequence& sequence, int64_t head) {
  const auto& problem = *task.problem;
  const int64_t depth = problem.padded_depth(), length = sequence.padded_queries, rows = sequence.queries;
  const T* query = task.query.at(sequence.batch, head, sequence.first_query);
  const T* gradient = task.gradient.at(sequence.batch, head, sequence.first_query);
  const T* output = task.output.at(sequence.batch, head, sequence.first_query);
  copy_rows(query, task.query.row, task.query.column, rows, problem.depth, buffers.rows, length, depth);
  transpose_to_right(buffers.rows, length, depth, buffers.queries_transposed, length);
  copy_to_right(buffers.rows, length, depth, buffers.queries);
  copy_rows(gradient, task.gradient.row, task.gradient.column, rows, problem.depth, buffers.rows, length, depth);
  transpose_to_right(buffers.rows, length, depth, buffers.gradients_transposed, length);
  copy_to_right(buffers.rows, length, depth, buffers.gradients);
  const A* stats = static_cast<const A*>(task.stats) +
      (sequence.batch * problem.heads + head) * 2 * task.stat_rows + sequence.first_query;
  for (int64_t i = 0; i < length; ++i) {
    A sum = 0;
    if (i < rows) {
      const T *a = gradient + i * task.gradient.row, *b = output + i * task.output.row;
      if (i + kPrefetched < rows)
        prefetch_row(b + kPrefetched * task.output.row, problem.depth);
      sum = inner_product<T, A>(a, task.gradient.column, b, task.output.column, problem.depth);
    }
    buffers.deltas[i] = sum;
    // Padding has the exponential 0: that of a large mask would overflow, and infinity times 0 is NaN.
    buffers.maxima[i] = i < rows ? stats[i] : std::numeric_limits<A>::infinity();
    buffers.inverses[i] = i < rows ? stats[task.stat_rows + i] : A(0);
  }
}

template <typename T, typename E, typename A>
ORCH_INLINE void backward_head(
    const Backward<T>& task, const BackwardBuffers<E, A>& buffers, const Sequence& sequence, int64_t index,
    int64_t head) {
  const auto& problem = *task.problem;
  const Bias<A> bias(problem, sequence.batch, head);
  const Dropout dropout(problem, index, head);
  const bool first_of_group = head % problem.group() == 0;
  load_queries(task, buffers, sequence, head);
  for (int64_t key = 0; key < sequence.padded_keys; key += buffers.size.keys) {
    const int64_t start = problem.causal ? key / kColumns * kColumns : 0;
    for (int64_t query = start; query < sequence.padded_queries; query += buffers.size.queries) {
      const int64_t keys = std::min(buffers.size.keys, sequence.keys - key);
      const int64_t padded_keys = std::min(buffers.size.keys, sequence.padded_keys - key);
      const int64_t queries = std::min(buffers.size.queries, sequence.padded_queries - query);
      const Range range{key, keys, padded_keys, query, queries};
      backward_block(
          problem, buffers, sequence, bias, dropout, range, first_of_group && query == start, key == 0);
    }
  }
}

template <typename T, typename E, typename A>
ORCH_INLINE void backward_heads(const Backward<T>& task, int64_t first, int64_t last) {
  const auto& problem = *task.problem;
  const BackwardBuffers<E, A> buffers(thread_scratch(), problem);
  const int64_t depth = problem.padded_depth();
  const std::vector<A> ones(round_up(problem.longest_query, kTile), A(1));
  for (int64_t unit = first; unit < last; ++unit) {
    const int64_t kv_head = unit % problem.kv_heads, index = unit / problem.kv_heads;
    const Sequence sequence(problem, index);
    const auto &k = task.key, &v = task.value;
    const T* key = k.at(sequence.batch, kv_head, sequence.first_key);
    const T* value = v.at(sequence.batch, kv_head, sequence.first_key);
    copy_rows(key, k.row, k.column, sequence.keys, problem.depth, buffers.keys, sequence.padded_keys, depth);
    copy_rows(value, v.row, v.column, sequence.keys, problem.depth, buffers.values, sequence.padded_keys, depth);
    transpose(buffers.keys, sequence.padded_keys, depth, buffers.keys_transposed, sequence.padded_keys);
    for (const auto& gradient : {task.key_gradient, task.value_gradient})
      prefetch_rows(gradient, sequence.batch, kv_head, sequence.first_key, sequence.keys, problem.depth);
    std::fill_n(buffers.key_gradient, sequence.padded_keys * depth, A(0));
    std::fill_n(buffers.value_gradient, sequence.padded_keys * depth, A(0));
    for (int64_t head = kv_head * problem.group(); head < (kv_head + 1) * problem.group(); ++head) {
      std::fill_n(buffers.query_gradient, sequence.padded_queries * depth, A(0));
      const auto& q = task.query_gradient;
      prefetch_rows(q, sequence.batch, head, sequence.first_query, sequence.queries, problem.depth);
      backward_head(task, buffers, sequence, index, head);
      write_columns(
          buffers.query_gradient, sequence.padded_queries, sequence.queries, problem.depth, ones.data(),
          q.at(sequence.batch, head, sequence.first_query), q.row, q.column);
    }
    const auto &dk = task.key_gradient, &dv = task.value_gradient;
    for (int64_t i = 0; i < sequence.keys; ++i) {
      const int64_t row = sequence.first_key + i;
      const A *key_row = buffers.key_gradient + i * depth, *value_row = buffers.value_gradient + i * depth;
      convert_row(key_row, dk.at(sequence.batch, kv_head, row), dk.column, problem.depth);
      convert_row(value_row, dv.at(sequence.batch, kv_head, row), dv.column, problem.depth);
    }
  }
  release_matrix_unit();
}

} // namespace orch_attention
