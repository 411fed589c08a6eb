// torch.ops.orch.attention: scaled dot-product attention for training, with dropout inside.
//
// Scores are computed with keys as rows and queries as columns. Then neither the forward nor the backward pass has to
// transpose them between its matrix products, the softmax reduces vertically, and one random word decides about two
// keys, which are also the pairs that BF16 products expect. The dropout mask is a function of a seed and each score's
// position. backward() stores the seed, and the maximum and the sum of each row, and computes the probabilities again.
// The work is divided by heads, so that the number of threads does not change a bit of the results.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <tuple>
#include <type_traits>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/native/CPUBlas.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "threefry.h"

namespace orch_attention {
namespace {

using at::BFloat16;
using orch_dropout::Block;
using orch_dropout::threefry;
using std::int64_t;

constexpr int64_t kColumns = 64; // queries per block: one random word each for a pair of keys
constexpr int64_t kKeys = 64; // keys per block of the backward pass
constexpr int64_t kQueries = 512; // the most queries per block of the backward pass, which bounds its memory
constexpr int64_t kKeyMultiple = 32; // lengths are padded to multiples, so that few matrix kernels are generated
constexpr int64_t kDepthMultiple = 16;
constexpr int64_t kPrefetched = 12; // rows
constexpr unsigned kTile = 8; // rows and columns that are transposed together

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// ---- The problem --------------------------------------------------------------------------------------------------

// A view of [batch, heads, rows, depth] with any strides, in elements.
template <typename T>
struct View {
  T* data;
  int64_t batch, head, row, column;

  explicit View(const at::Tensor& tensor)
      : data(static_cast<T*>(tensor.data_ptr())),
        batch(tensor.stride(0)),
        head(tensor.stride(1)),
        row(tensor.stride(2)),
        column(tensor.stride(3)) {}

  T* at(int64_t b, int64_t h, int64_t first_row) const {
    return data + b * batch + h * head + first_row * row;
  }
};

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

uint32_t dropout_threshold(double p) {
  return static_cast<uint32_t>(std::min(std::nearbyint(std::ldexp(p, 16)), 65535.0));
}

// Corresponds to the rounded probability, so that the expected output is exact.
double dropout_scale(double p) {
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

// ---- Matrix products ----------------------------------------------------------------------------------------------

// Whether the right operand of a product of E has its rows in pairs.
template <typename E>
constexpr bool in_pairs = std::is_same_v<E, BFloat16>;

// C = A x B, or C += A x B. Rows are `lda`, `ldb` and `ldc` elements apart. BF16 has the rows of B in pairs:
// [rows / 2, columns, 2].
template <typename E, typename A>
ORCH_INLINE void multiply(
    int64_t m, int64_t n, int64_t k, const E* a, int64_t lda, const E* b, int64_t ldb, A* c, int64_t ldc, bool add) {
#ifdef CPUBLAS_BRGEMM_F32F32F32
  if constexpr (!std::is_same_v<E, double>) {
    at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, in_pairs<E>);
    return;
  }
#endif
  if constexpr (std::is_same_v<E, A>)
    for (int64_t i = 0; i < m; ++i) {
      A* __restrict target = c + i * ldc;
      if (!add)
        std::fill_n(target, n, A(0));
      for (int64_t l = 0; l < k; ++l)
        for (int64_t j = 0; j < n; ++j)
          target[j] += a[i * lda + l] * b[l * ldb + j];
    }
}

void release_matrix_unit() {
#ifdef CPUBLAS_BRGEMM_F32F32F32
  at::native::cpublas::brgemm_release();
#endif
}

// Whether nothing forbids oneDNN instructions of this CPU. Otherwise products of BF16 raise an error or are slow.
bool is_onednn_unlimited() {
  static const bool unlimited = !std::getenv("ONEDNN_MAX_CPU_ISA") && !std::getenv("DNNL_MAX_CPU_ISA");
  return unlimited && at::globalContext().userEnabledMkldnn();
}

// Whether products of BF16 are faster than products of FP32: with AMX, and with AVX512_BF16 on CPUs of AMD, where
// a layer takes 0.64 to 0.86 of the time (Zen 5, benchmarks/step.py). On CPUs of Intel with AVX512_BF16 alone, they
// take 1.4 times as long, with their conversions.
bool multiplies_bfloat16() {
#if defined(CPUBLAS_BRGEMM_F32F32F32) && defined(__x86_64__)
  static const bool is_fast = __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512bf16");
  return at::native::cpublas::could_pack(at::kBFloat16) ||
      (is_fast && is_onednn_unlimited() && at::get_cpu_capability() == "AVX512");
#else
  return false;
#endif
}

// ---- Layouts ------------------------------------------------------------------------------------------------------

// Requests a row in advance: the rows of a head are far apart, and the CPU does not prefetch across pages.
template <bool is_written = false, typename T>
ORCH_INLINE void prefetch_row(const T* row, int64_t columns) {
  for (int64_t j = 0; j < columns; j += 64 / static_cast<int64_t>(sizeof(T)))
    __builtin_prefetch(row + j, is_written);
}

// Requests rows that are written later.
template <typename T>
ORCH_INLINE void prefetch_rows(
    const View<T>& view, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t columns) {
  for (int64_t i = first; i < first + rows; ++i)
    prefetch_row<true>(view.at(b, h, i), columns);
}

// What a number is in memory. Compilers vectorise loops over it, but not over BFloat16, which is a class.
template <typename T>
using Stored = std::conditional_t<std::is_same_v<T, BFloat16>, uint16_t, T>;

// The BF16 number nearest to FP32 numbers, or to even, from their bits, in a word or a vector of words.
template <typename Words>
ORCH_INLINE void round_to_bfloat16(Words& bits) {
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, nan = Words() + 0x7fc0;
  bits = (bits & 0x7fffffff) > 0x7f800000 ? nan : rounded; // no branch, so that compilers vectorise loops
}

// The number in another type.
template <typename To, typename From>
ORCH_INLINE Stored<To> convert(Stored<From> x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_same_v<From, BFloat16>)
    return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
  else if constexpr (std::is_same_v<To, BFloat16>) {
    auto bits = std::bit_cast<uint32_t>(x);
    round_to_bfloat16(bits);
    return static_cast<uint16_t>(bits);
  } else
    return static_cast<To>(x);
}

// Converts `count` numbers in a row to numbers `step` apart.
template <typename To, typename From>
ORCH_INLINE void convert_row(const From* from, To* to, int64_t step, int64_t count) {
  const auto* __restrict source = reinterpret_cast<const Stored<From>*>(from);
  auto* __restrict target = reinterpret_cast<Stored<To>*>(to);
  if (step == 1)
    for (int64_t i = 0; i < count; ++i)
      target[i] = convert<To, From>(source[i]);
  else
    for (int64_t i = 0; i < count; ++i)
      target[i * step] = convert<To, From>(source[i]);
}

// Copies rows x columns of a view to dense rows of `width`, and fills up with zeros to `height` rows.
template <typename T, typename E>
ORCH_INLINE void copy_rows(
    const T* from, int64_t row, int64_t column, int64_t rows, int64_t columns, E* to, int64_t height, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    const auto* __restrict source = reinterpret_cast<const Stored<T>*>(from + i * row);
    auto* __restrict target = reinterpret_cast<Stored<E>*>(to + i * width);
    if (i + kPrefetched < rows)
      prefetch_row(source + kPrefetched * row, columns);
    if (column == 1)
      for (int64_t j = 0; j < columns; ++j)
        target[j] = convert<E, T>(source[j]);
    else
      for (int64_t j = 0; j < columns; ++j)
        target[j] = convert<E, T>(source[j * column]);
    std::fill_n(target + columns, width - columns, Stored<E>(0));
  }
  std::memset(static_cast<void*>(to + rows * width), 0, (height - rows) * width * sizeof(E));
}

using Lanes = uint32_t __attribute__((vector_size(4 * kTile)));
using Halves = uint16_t __attribute__((vector_size(2 * kTile)));

// Of each block of twice `step` rows and columns, exchanges the upper right quarter and the lower left one.
template <unsigned step>
ORCH_INLINE void exchange(Lanes (&rows)[kTile]) {
  constexpr Lanes lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  const Lanes upper = lanes + (lanes & step) * (kTile / step - 1);
  const Lanes lower = (lanes | step) + (lanes & step) * (kTile / step);
#pragma GCC unroll 8
  for (unsigned i = 0; i < kTile; ++i)
    if ((i & step) == 0) {
      const Lanes first = rows[i], second = rows[i + step];
      rows[i] = __builtin_shuffle(first, second, upper);
      rows[i + step] = __builtin_shuffle(first, second, lower);
    }
}

ORCH_INLINE void transpose(Lanes (&rows)[kTile]) {
  exchange<4>(rows);
  exchange<2>(rows);
  exchange<1>(rows);
}

// Transposes dense rows: `to` has `columns` rows, `stride` elements apart. All sizes are multiples of kDepthMultiple.
template <typename T>
ORCH_INLINE void transpose(const T* from, int64_t rows, int64_t columns, T* to, int64_t stride) {
  constexpr int64_t packed = sizeof(uint32_t) / sizeof(T); // BF16 is transposed in pairs of columns
  for (int64_t i = 0; i < rows; i += kTile)
    for (int64_t j = 0; j < columns; j += kTile * packed) {
      Lanes tile[kTile];
      for (int64_t r = 0; r < kTile; ++r)
        std::memcpy(&tile[r], from + (i + r) * columns + j, sizeof(Lanes));
      transpose(tile);
      for (int64_t c = 0; c < kTile; ++c)
        for (int64_t part = 0; part < packed; ++part) {
          using Row = std::conditional_t<packed == 2, Halves, Lanes>;
          const auto row = __builtin_convertvector(tile[c] >> (16 * part), Row);
          std::memcpy(static_cast<void*>(to + (j + c * packed + part) * stride + i), &row, sizeof(row));
        }
    }
}

ORCH_INLINE void transpose(const double* from, int64_t rows, int64_t columns, double* to, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      to[j * stride + i] = from[i * columns + j];
}

// Converts dense rows to the transposed right operand of a product, with rows of `stride` columns.
template <typename E>
ORCH_INLINE void transpose_to_right(const E* from, int64_t rows, int64_t columns, E* to, int64_t stride) {
  if constexpr (in_pairs<E>)
    transpose(reinterpret_cast<const uint32_t*>(from), rows, columns / 2, reinterpret_cast<uint32_t*>(to), stride);
  else
    transpose(from, rows, columns, to, stride);
}

// Converts dense rows to the right operand of a product.
template <typename E>
ORCH_INLINE void copy_to_right(const E* from, int64_t rows, int64_t columns, E* to) {
  if constexpr (in_pairs<E>) {
    for (int64_t i = 0; i < rows; i += 2) {
      const auto* __restrict even = reinterpret_cast<const uint16_t*>(from + i * columns);
      const auto* __restrict odd = even + columns;
      auto* __restrict target = reinterpret_cast<uint32_t*>(to + i * columns);
      for (int64_t j = 0; j < columns; ++j)
        target[j] = even[j] | static_cast<uint32_t>(odd[j]) << 16;
    }
  } else {
    std::memcpy(to, from, rows * columns * sizeof(E));
  }
}

// ---- Elementwise functions ----------------------------------------------------------------------------------------

// exp(x) for x <= 0, and 0 where the result is subnormal. The polynomial has the smallest relative error of its degree
// from -log(2) / 2 to log(2) / 2, 9e-8. With fused multiplications and additions, the result is wrong by at most two
// units in the last place down to 1e-13, and by four below.
ORCH_INLINE float exponential(float x) {
  constexpr float kRounding = 12582912 + 127; // adding 1.5 * 2**23 rounds to an integer; 127 is the bias of exponents
  const float shifted = x * 1.44269504f + kRounding, n = shifted - kRounding;
  const float r = x - n * 0.693147182f;
  float y = 8.290288039e-3f;
  y = y * r + 4.189807177e-2f;
  y = y * r + 1.666763723e-1f;
  y = y * r + 4.999914765e-1f;
  y = y * r + 9.999997020e-1f;
  y = y * r + 1;
  const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
  return x < -87.0f ? 0.0f : y * power;
}

ORCH_INLINE double exponential(double x) {
  return std::exp(x);
}

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

// ---- Forward ------------------------------------------------------------------------------------------------------

// Memory of one thread, kept for later calls.
class Scratch {
 public:
  void reserve(size_t bytes) {
    if (bytes > size_) {
      free();
      data_ = static_cast<std::byte*>(::operator new(bytes, std::align_val_t(64)));
      size_ = bytes;
    }
    used_ = 0;
  }
  template <typename T>
  T* take(int64_t count) {
    T* part = reinterpret_cast<T*>(data_ + used_);
    used_ += round_up(count * sizeof(T), 64);
    return part;
  }
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    free();
  }

 private:
  void free() {
    ::operator delete(data_, std::align_val_t(64));
  }
  std::byte* data_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

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

// Converts FP32 numbers, given by their bits, and writes `count` of them `step` elements apart.
template <typename T>
ORCH_INLINE void write_tile_row(Lanes& bits, T* to, int64_t step, int64_t count) {
  constexpr bool is_bfloat16 = std::is_same_v<T, BFloat16>;
  if constexpr (is_bfloat16)
    round_to_bfloat16(bits);
  const auto numbers = __builtin_convertvector(bits, std::conditional_t<is_bfloat16, Halves, Lanes>);
  if (step == 1 && count >= kTile) {
    std::memcpy(static_cast<void*>(to), &numbers, sizeof(numbers));
    return;
  }
  for (int64_t i = 0; i < std::min<int64_t>(kTile, count); ++i) {
    const auto number = numbers[i];
    std::memcpy(static_cast<void*>(to + i * step), &number, sizeof(T));
  }
}

// Divides by the sums and writes columns as rows. Columns and factors are padded to multiples of kTile.
template <typename T>
ORCH_INLINE void write_columns(
    const float* from, int64_t stride, int64_t rows, int64_t depth, const float* factors, T* to, int64_t row,
    int64_t column) {
  for (int64_t i = 0; i < rows; i += kTile)
    for (int64_t d = 0; d < depth; d += kTile) {
      Lanes tile[kTile];
      for (int64_t r = 0; r < kTile; ++r) {
        float scaled[kTile];
        for (int64_t c = 0; c < kTile; ++c)
          scaled[c] = from[(d + r) * stride + i + c] * factors[i + c];
        std::memcpy(&tile[r], scaled, sizeof(Lanes));
      }
      transpose(tile);
      for (int64_t r = 0; r < std::min<int64_t>(kTile, rows - i); ++r)
        write_tile_row(tile[r], to + (i + r) * row + d * column, column, depth - d);
    }
}

ORCH_INLINE void write_columns(
    const double* from, int64_t stride, int64_t rows, int64_t depth, const double* factors, double* to, int64_t row,
    int64_t column) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < depth; ++d)
      to[i * row + d * column] = from[d * stride + i] * factors[i];
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

// ---- Backward -----------------------------------------------------------------------------------------------------

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

  static constexpr bool kSame = std::is_same_v<E, A>;

  BackwardBuffers(Scratch& scratch, const Problem& problem) {
    const int64_t depth = problem.padded_depth(), longest_keys = round_up(problem.longest_key, kKeyMultiple);
    const int64_t longest_queries = round_up(problem.longest_query, kColumns);
    const int64_t block = kKeys * std::min(kQueries, longest_queries);
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
  for (int64_t key = 0; key < sequence.padded_keys; key += kKeys) {
    const int64_t start = problem.causal ? key / kColumns * kColumns : 0;
    for (int64_t query = start; query < sequence.padded_queries; query += kQueries) {
      const int64_t keys = std::min(kKeys, sequence.keys - key);
      const int64_t queries = std::min(kQueries, sequence.padded_queries - query);
      const Range range{key, keys, std::min(kKeys, sequence.padded_keys - key), query, queries};
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

// ---- Versions for each register width -----------------------------------------------------------------------------

enum class Width { portable, avx2, avx512 };

// What torch uses, so that ATEN_CPU_CAPABILITY limits it.
Width widest() {
#ifdef __x86_64__
  const auto capability = at::get_cpu_capability();
  if (capability == "AVX512")
    return Width::avx512;
  if (capability == "AVX2")
    return Width::avx2;
#endif
  return Width::portable;
}

template <typename T, typename E, typename A>
ORCH_INLINE void run(const Forward<T>& task, int64_t first, int64_t last) {
  forward_heads<T, E, A>(task, first, last);
}

template <typename T, typename E, typename A>
ORCH_INLINE void run(const Backward<T>& task, int64_t first, int64_t last) {
  backward_heads<T, E, A>(task, first, last);
}

#ifdef __x86_64__
template <typename T, typename E, typename A, typename Task>
__attribute__((target("avx2,fma"))) void run_avx2(const Task& task, int64_t first, int64_t last) {
  run<T, E, A>(task, first, last);
}

template <typename T, typename E, typename A, typename Task>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"))) void run_avx512(
    const Task& task, int64_t first, int64_t last) {
  run<T, E, A>(task, first, last);
}
#endif

// Products of BF16 need AVX-512 anyway; FP64 is for checks of gradients. Neither has all versions.
template <typename T, typename E, typename A, typename Task>
void run_widest(const Task& task, int64_t first, int64_t last) {
#ifdef __x86_64__
  static const Width width = widest();
  if constexpr (!std::is_same_v<E, double>) {
    if (in_pairs<E> || width == Width::avx512)
      return run_avx512<T, E, A>(task, first, last);
    if constexpr (!in_pairs<E>)
      if (width == Width::avx2)
        return run_avx2<T, E, A>(task, first, last);
  }
#endif
  if constexpr (!in_pairs<E>)
    run<T, E, A>(task, first, last);
}

// Calls `make_task` for the tensors' type, and runs the task for all units.
template <typename T, typename Function>
void run_parallel(int64_t units, const Function& make_task) {
  const auto task = make_task(T());
  const bool pairs = std::is_same_v<T, BFloat16> && multiplies_bfloat16();
  at::parallel_for(0, units, 1, [&](int64_t first, int64_t last) {
    if constexpr (std::is_same_v<T, BFloat16>)
      pairs ? run_widest<T, T, float>(task, first, last) : run_widest<T, float, float>(task, first, last);
    else
      run_widest<T, T, T>(task, first, last);
  });
}

template <typename Function>
void dispatch(at::ScalarType dtype, int64_t units, const Function& make_task) {
  if (dtype == at::kDouble)
    run_parallel<double>(units, make_task);
  else if (dtype == at::kFloat)
    run_parallel<float>(units, make_task);
  else
    run_parallel<BFloat16>(units, make_task);
}

// ---- Operators ----------------------------------------------------------------------------------------------------

at::ScalarType accumulator(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// Returns the mask as what is added to the scores: 0 or minus infinity for a boolean one.
at::Tensor added_scores(const at::Tensor& mask, at::ScalarType dtype) {
  if (mask.scalar_type() != at::kBool)
    return mask.to(dtype);
  return at::zeros(mask.sizes(), mask.options().dtype(dtype)).masked_fill_(mask.logical_not(), -INFINITY);
}

// Splits off masks that are the same for all queries. Dimensions that are broadcast are not copied.
void set_bias(Problem& problem, const at::Tensor& mask, at::ScalarType dtype) {
  auto compact = mask;
  while (compact.dim() < 4)
    compact = compact.unsqueeze(0);
  for (int64_t d = 0; d < 3; ++d)
    if (compact.stride(d) == 0 || compact.size(d) == 1)
      compact = compact.narrow(d, 0, 1);
  compact = compact.expand({compact.size(0), compact.size(1), compact.size(2), problem.longest_key});
  const auto added = added_scores(compact, dtype);
  if (added.size(2) == 1) {
    problem.key_bias = added.select(2, 0).contiguous();
    return;
  }
  const auto sizes = added.sizes();
  problem.bias = at::zeros({sizes[0], sizes[1], sizes[3], round_up(sizes[2], kColumns)}, added.options());
  problem.bias.narrow(3, 0, sizes[2]).copy_(added.transpose(2, 3));
}

using MaybeTensor = c10::optional<at::Tensor>;

// What an operator takes besides query, key and value.
struct Options {
  MaybeTensor mask, query_offsets, key_offsets;
  double p, scale;
  bool causal;
  int64_t seed;
};

int64_t longest(const at::Tensor& offsets) {
  return offsets.numel() > 1 ? offsets.diff().max().item<int64_t>() : 0;
}

Problem describe(const at::Tensor& query, const at::Tensor& key, const Options& options) {
  Problem problem{};
  problem.sequences = query.size(0);
  problem.heads = query.size(1);
  problem.kv_heads = key.size(1);
  problem.depth = query.size(3);
  problem.longest_query = query.size(2);
  problem.longest_key = key.size(2);
  problem.causal = options.causal;
  problem.scale = options.scale;
  problem.p = options.p;
  problem.seed = static_cast<uint64_t>(options.seed);
  if (options.mask && options.mask->defined())
    set_bias(problem, *options.mask, accumulator(query.scalar_type()));
  if (options.query_offsets && options.query_offsets->defined()) {
    problem.query_offsets = options.query_offsets->data_ptr<int64_t>();
    problem.key_offsets = options.key_offsets->data_ptr<int64_t>();
    problem.sequences = options.query_offsets->numel() - 1;
    problem.longest_query = longest(*options.query_offsets);
    problem.longest_key = longest(*options.key_offsets);
  }
  return problem;
}

at::Tensor empty_stats(const at::Tensor& query) {
  const auto options = query.options().dtype(accumulator(query.scalar_type()));
  return at::empty({query.size(0), query.size(1), 2, query.size(2)}, options);
}

using Pair = std::tuple<at::Tensor, at::Tensor>;
using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Pair attention_by_seed(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& mask,
    const MaybeTensor& query_offsets, const MaybeTensor& key_offsets, double p, bool causal, double scale,
    int64_t seed) {
  if (query.scalar_type() == at::kHalf) { // rare in training on CPUs
    auto [output, stats] = attention_by_seed(
        query.to(at::kFloat), key.to(at::kFloat), value.to(at::kFloat), mask, query_offsets, key_offsets, p, causal,
        scale, seed);
    return {output.to(at::kHalf), stats};
  }
  // As in torch, the dimensions have the order in memory of the query's: its view works if one of the query does.
  auto output = at::empty_like(query), stats = empty_stats(query);
  if (output.numel() == 0)
    return {output, stats};
  if (key.size(2) == 0)
    return {output.zero_(), stats.zero_()};
  const auto problem = describe(query, key, {mask, query_offsets, key_offsets, p, scale, causal, seed});
  dispatch(query.scalar_type(), problem.sequences * problem.heads, [&](auto element) {
    using T = decltype(element);
    return Forward<T>{&problem, View<const T>(query), View<const T>(key), View<const T>(value), View<T>(output),
                      stats.data_ptr(), query.size(2)};
  });
  return {output, stats};
}

Triple attention_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const MaybeTensor& mask, const MaybeTensor& query_offsets, const MaybeTensor& key_offsets, const at::Tensor& output,
    const at::Tensor& stats, double p, bool causal, double scale, int64_t seed) {
  if (query.scalar_type() == at::kHalf) {
    const auto [dq, dk, dv] = attention_backward(
        gradient.to(at::kFloat), query.to(at::kFloat), key.to(at::kFloat), value.to(at::kFloat), mask, query_offsets,
        key_offsets, output.to(at::kFloat), stats, p, causal, scale, seed);
    return {dq.to(at::kHalf), dk.to(at::kHalf), dv.to(at::kHalf)};
  }
  auto dq = at::empty_like(query), dk = at::empty_like(key), dv = at::empty_like(value);
  if (output.numel() == 0 || key.size(2) == 0)
    return {dq.zero_(), dk.zero_(), dv.zero_()};
  const auto problem = describe(query, key, {mask, query_offsets, key_offsets, p, scale, causal, seed});
  dispatch(query.scalar_type(), problem.sequences * problem.kv_heads, [&](auto element) {
    using T = decltype(element);
    return Backward<T>{&problem, View<const T>(query), View<const T>(key), View<const T>(value), View<const T>(output),
                       View<const T>(gradient), View<T>(dq), View<T>(dk), View<T>(dv), stats.const_data_ptr(),
                       query.size(2)};
  });
  return {dq, dk, dv};
}

Pair attention_by_seed_meta(
    const at::Tensor& query, const at::Tensor&, const at::Tensor&, const MaybeTensor&, const MaybeTensor&,
    const MaybeTensor&, double, bool, double, int64_t) {
  return {at::empty_like(query), empty_stats(query)};
}

Triple attention_backward_meta(
    const at::Tensor&, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor&,
    const MaybeTensor&, const MaybeTensor&, const at::Tensor&, const at::Tensor&, double, bool, double, int64_t) {
  return {at::empty_like(query), at::empty_like(key), at::empty_like(value)};
}

template <typename Function>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

Pair call_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Options& o) {
  static const auto handle = find_operator<decltype(attention_by_seed)>("orch::attention_by_seed");
  return handle.call(query, key, value, o.mask, o.query_offsets, o.key_offsets, o.p, o.causal, o.scale, o.seed);
}

// Returns which weights dropout keeps, [batch, heads, queries, keys]: with equal scores and unit vectors as values, the
// output shows them.
at::Tensor kept_weights(const at::Tensor& query, const at::Tensor& key, double p, int64_t seed) {
  const int64_t batch = query.size(0), heads = query.size(1), keys = key.size(2);
  const auto options = query.options().dtype(at::kFloat).requires_grad(false);
  const auto zeros = [&](int64_t rows) { return at::zeros({1}, options).expand({batch, heads, rows, keys}); };
  const auto units = at::eye(keys, options).expand({batch, heads, keys, keys});
  return std::get<0>(attention_by_seed(zeros(query.size(2)), zeros(keys), units, {}, {}, {}, p, false, 1, seed)) != 0;
}

// The same function with the same dropout, composed of operators that torch differentiates, also twice and by the mask.
// It stores all weights.
at::Tensor composite(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Options& o) {
  const int64_t group = query.size(1) / key.size(1);
  const auto spread = [&](const at::Tensor& t) { return group == 1 ? t : t.repeat_interleave(group, 1); };
  auto scores = at::matmul(query, spread(key).transpose(2, 3)).to(accumulator(query.scalar_type())) * o.scale;
  if (o.mask && o.mask->scalar_type() == at::kBool)
    scores = scores.masked_fill(o.mask->logical_not(), -INFINITY);
  else if (o.mask)
    scores = scores + o.mask->to(scores.scalar_type());
  if (o.causal)
    scores = scores.masked_fill(
        at::ones({query.size(2), key.size(2)}, query.options().dtype(at::kBool)).tril().logical_not(), -INFINITY);
  const auto without_keys = std::get<0>(scores.max(-1, true)) == -INFINITY;
  auto weights = at::softmax(scores.masked_fill(without_keys, 0), -1).masked_fill(without_keys, 0);
  if (o.p > 0)
    weights = weights * kept_weights(query, key, o.p, o.seed) * dropout_scale(o.p);
  return at::matmul(weights.to(value.scalar_type()), spread(value));
}

struct Attention : torch::autograd::Function<Attention> {
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
      const at::Tensor& value, const Options& options) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [output, stats] = call_forward(query, key, value, options);
    const auto saved = [](const MaybeTensor& tensor) { return tensor ? *tensor : at::Tensor(); };
    context->save_for_backward(
        {query, key, value, saved(options.mask), saved(options.query_offsets), saved(options.key_offsets), output,
         stats});
    context->saved_data["p"] = options.p;
    context->saved_data["causal"] = options.causal;
    context->saved_data["scale"] = options.scale;
    context->saved_data["seed"] = options.seed;
    return {output, stats};
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    if (at::GradMode::is_enabled()) // create_graph=True
      return differentiable_gradients(context, gradients[0]);
    static const auto handle = find_operator<decltype(attention_backward)>("orch::attention_backward");
    const auto saved = context->get_saved_variables();
    const auto& data = context->saved_data;
    const auto optional = [](const at::Tensor& t) { return t.defined() ? MaybeTensor(t) : MaybeTensor(); };
    auto [dq, dk, dv] = handle.call(
        gradients[0], saved[0], saved[1], saved[2], optional(saved[3]), optional(saved[4]), optional(saved[5]),
        saved[6], saved[7], data.at("p").toDouble(), data.at("causal").toBool(), data.at("scale").toDouble(),
        data.at("seed").toInt());
    return {dq, dk, dv, at::Tensor()};
  }

  static torch::autograd::variable_list differentiable_gradients(
      torch::autograd::AutogradContext* context, const at::Tensor& gradient) {
    const auto saved = context->get_saved_variables();
    const auto& data = context->saved_data;
    TORCH_CHECK(!saved[4].defined(), "orch::attention_varlen has no second derivatives (create_graph=True)");
    const auto mask = saved[3].defined() ? MaybeTensor(saved[3]) : MaybeTensor();
    const Options options{mask, {}, {}, data.at("p").toDouble(), data.at("scale").toDouble(),
                          data.at("causal").toBool(), data.at("seed").toInt()};
    // Aliases: the gradient of one must not include that of another that is the same tensor or was computed from it.
    torch::autograd::variable_list aliases, inputs, results(4);
    for (size_t i = 0; i < 3; ++i) {
      aliases.push_back(saved[i].alias());
      if (saved[i].requires_grad())
        inputs.push_back(aliases[i]);
    }
    auto gradients = torch::autograd::grad(
        {composite(aliases[0], aliases[1], aliases[2], options)}, inputs, {gradient}, true, true);
    for (size_t i = 3; i-- > 0;)
      if (saved[i].requires_grad()) {
        results[i] = gradients.back();
        gradients.pop_back();
      }
    return results;
  }
};

Pair with_gradient(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& mask,
    const MaybeTensor& query_offsets, const MaybeTensor& key_offsets, double p, bool causal, double scale,
    int64_t seed) {
  const Options options{mask, query_offsets, key_offsets, p, scale, causal, seed};
  if (mask && mask->requires_grad() && at::GradMode::is_enabled())
    return {composite(query, key, value, options), at::empty({0}, query.options())};
  const auto results = Attention::apply(query, key, value, options);
  return {results[0], results[1].detach()}; // compiled autograd knows no outputs without gradients
}

int64_t next_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  return static_cast<int64_t>(at::check_generator<at::CPUGeneratorImpl>(generator)->random64());
}

void check_inputs(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double p) {
  const auto dtype = query.scalar_type();
  const bool is_supported = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble;
  TORCH_CHECK_TYPE(is_supported, "orch::attention does not support ", dtype);
  TORCH_CHECK_TYPE(
      key.scalar_type() == dtype && value.scalar_type() == dtype,
      "orch::attention: query, key and value must have one dtype, not ", dtype, ", ", key.scalar_type(), " and ",
      value.scalar_type());
  TORCH_CHECK_VALUE(
      query.dim() == 4 && key.dim() == 4 && value.sizes() == key.sizes() && key.size(0) == query.size(0) &&
          key.size(3) == query.size(3) && key.size(1) > 0 && query.size(1) % key.size(1) == 0,
      "orch::attention: expected query [batch, heads, queries, depth], and key and value [batch, heads / n, keys, "
      "depth], not ",
      query.sizes(), ", ", key.sizes(), " and ", value.sizes());
  TORCH_CHECK_VALUE(p >= 0 && p < 1, "orch::attention: p must be at least 0 and less than 1, not ", p);
}

void check_mask(const at::Tensor& mask, const at::Tensor& query, const at::Tensor& key) {
  const std::array<int64_t, 4> expected{query.size(0), query.size(1), query.size(2), key.size(2)};
  TORCH_CHECK_TYPE(
      mask.scalar_type() == at::kBool || mask.is_floating_point(),
      "orch::attention: a mask must be boolean or floating, not ", mask.scalar_type());
  bool fits = mask.dim() <= 4;
  for (int64_t i = 1; fits && i <= mask.dim(); ++i)
    fits = mask.size(-i) == 1 || mask.size(-i) == expected[4 - i];
  TORCH_CHECK_VALUE(
      fits, "orch::attention: a mask of ", mask.sizes(), " cannot be broadcast to ", at::IntArrayRef(expected));
}

// Whether this torch has fast products for the kernel on this CPU.
bool attention_is_fast() {
#ifdef CPUBLAS_BRGEMM_F32F32F32
  return widest() != Width::portable;
#else
  return false;
#endif
}

double default_scale(const at::Tensor& query, c10::optional<double> scale) {
  return scale ? *scale : 1 / std::sqrt(static_cast<double>(query.size(-1)));
}

at::Tensor attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& mask, double p,
    bool causal, c10::optional<double> scale) {
  check_inputs(query, key, value, p);
  if (mask && mask->defined())
    check_mask(*mask, query, key);
  const int64_t seed = p > 0 ? next_seed() : 0;
  return std::get<0>(call_forward(query, key, value, {mask, {}, {}, p, default_scale(query, scale), causal, seed}));
}

at::Tensor checked_offsets(const at::Tensor& offsets, int64_t rows) {
  TORCH_CHECK_VALUE(
      offsets.dim() == 1 && offsets.numel() > 0 && !offsets.is_floating_point(),
      "orch::attention_varlen: offsets must be a vector of integers");
  const auto exact = offsets.to(at::kCPU, at::kLong).contiguous();
  const auto* values = exact.const_data_ptr<int64_t>();
  const int64_t count = exact.numel();
  TORCH_CHECK_VALUE(
      values[0] == 0 && values[count - 1] == rows && std::is_sorted(values, values + count),
      "orch::attention_varlen: offsets must increase from 0 to the number of rows, ", rows);
  return exact;
}

at::Tensor attention_varlen(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& query_offsets,
    const at::Tensor& key_offsets, double p, bool causal, c10::optional<double> scale) {
  TORCH_CHECK_VALUE(
      query.dim() == 3 && key.dim() == 3 && value.dim() == 3 && query_offsets.numel() == key_offsets.numel(),
      "orch::attention_varlen: expected query, key and value [rows, heads, depth] and as many offsets of keys as of "
      "queries");
  const auto as_batch = [](const at::Tensor& t) { return t.transpose(0, 1).unsqueeze(0); };
  const auto q = as_batch(query), k = as_batch(key), v = as_batch(value);
  check_inputs(q, k, v, p);
  const Options options{
      {}, checked_offsets(query_offsets, query.size(0)), checked_offsets(key_offsets, key.size(0)), p,
      default_scale(query, scale), causal, p > 0 ? next_seed() : 0};
  return std::get<0>(call_forward(q, k, v, options)).squeeze(0).transpose(0, 1);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(orch, library) {
  library.def(
      "attention_by_seed(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? query_offsets, "
      "Tensor? key_offsets, float p, bool causal, float scale, int seed) -> (Tensor, Tensor)");
  library.def(
      "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, "
      "Tensor? query_offsets, Tensor? key_offsets, Tensor output, Tensor stats, float p, bool causal, float scale, "
      "int seed) -> (Tensor, Tensor, Tensor)");
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? mask=None, float p=0.0, bool causal=False, "
      "float? scale=None) -> Tensor",
      &attention);
  library.def("attention_is_fast() -> bool", &attention_is_fast);
  library.def(
      "attention_varlen(Tensor query, Tensor key, Tensor value, Tensor query_offsets, Tensor key_offsets, "
      "float p=0.0, bool causal=False, float? scale=None) -> Tensor",
      &attention_varlen);
}

TORCH_LIBRARY_IMPL(orch, CPU, library) {
  library.impl("attention_by_seed", &attention_by_seed);
  library.impl("attention_backward", &attention_backward);
}

TORCH_LIBRARY_IMPL(orch, Meta, library) {
  library.impl("attention_by_seed", &attention_by_seed_meta);
  library.impl("attention_backward", &attention_backward_meta);
}

TORCH_LIBRARY_IMPL(orch, Autograd, library) {
  library.impl("attention_by_seed", &with_gradient);
}

} // namespace orch_attention
