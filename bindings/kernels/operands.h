#pragma once

// Matrix products on one thread, and the layouts and types of their operands.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/native/CPUBlas.h>

#include "elementwise.h"

namespace orch_attention {

using at::BFloat16;
using orch_elementwise::convert;
using orch_elementwise::round_to_bfloat16;
using orch_elementwise::Stored;
using std::int64_t;

constexpr int64_t kPrefetched = 12; // rows
constexpr unsigned kTile = 8; // rows and columns that are transposed together

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// ---- Memory --------------------------------------------------------------------------------------------------------

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
    data_ = nullptr; // The next allocation may fail.
    size_ = 0;
  }
  std::byte* data_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

inline Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

// ---- Matrix products -----------------------------------------------------------------------------------------------

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

inline void release_matrix_unit() {
#ifdef CPUBLAS_BRGEMM_F32F32F32
  at::native::cpublas::brgemm_release();
#endif
}

// Whether nothing forbids oneDNN instructions of this CPU. Otherwise products of BF16 raise an error or are slow.
inline bool is_onednn_unlimited() {
  static const bool unlimited = !std::getenv("ONEDNN_MAX_CPU_ISA") && !std::getenv("DNNL_MAX_CPU_ISA");
  return unlimited && at::globalContext().userEnabledMkldnn();
}

// Whether products of BF16 use AMX.
inline bool has_matrix_unit() {
#ifdef CPUBLAS_BRGEMM_F32F32F32
  return at::native::cpublas::could_pack(at::kBFloat16);
#else
  return false;
#endif
}

// Whether products of BF16 are faster than products of FP32: with AMX, and with AVX512_BF16 on CPUs of AMD, where
// a layer takes 0.64 to 0.86 of the time (Zen 5, benchmarks/step.py). On CPUs of Intel with AVX512_BF16 alone, they
// take 1.4 times as long, with their conversions.
inline bool multiplies_bfloat16() {
#if defined(CPUBLAS_BRGEMM_F32F32F32) && defined(__x86_64__)
  static const bool is_fast = __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512bf16");
  return has_matrix_unit() ||
      (is_fast && is_onednn_unlimited() && at::get_cpu_capability() == "AVX512");
#else
  return false;
#endif
}

// ---- Layouts -------------------------------------------------------------------------------------------------------

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

} // namespace orch_attention
