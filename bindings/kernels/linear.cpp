// torch.ops.orch.linear: a linear layer in BF16 with FP32 parameters, as under autocast, on CPUs with AMX.
//
// oneDNN generates kernels for every number of rows: 5 ms for a product, again after 1,024 others, so that batches of
// different lengths spend more time on that than on products (benchmarks/RESULTS.md). Here, results are computed in
// blocks of 32 x 32, which are few instructions of AMX, and sums over rows are filled up with zeros. Gradients of
// parameters, and of FP32 inputs, are summed and stored in FP32. The number of threads does not change a bit.

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/CPUBlas.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "gradients.h"
#include "threefry.h"

#if defined(__x86_64__) && defined(CPUBLAS_BRGEMM_F32F32F32) && __has_include(<amxbf16intrin.h>)
#define HAS_LINEAR
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // gcc 12 warns about its own intrinsics
#endif

namespace orch_linear {
namespace {

using at::BFloat16;
using std::int64_t;
using MaybeTensor = c10::optional<at::Tensor>;

constexpr int64_t kTile = 16; // rows of a tile register, which have 64 bytes
constexpr int64_t kBlock = 32; // rows and columns of a result that are computed together, in 2 x 2 tiles
constexpr int64_t kPanelBytes = 1 << 20; // of a right operand: they stay in the L2 cache while all rows use them

bool linear_is_fast() {
#ifdef HAS_LINEAR
  return __builtin_cpu_supports("avx512bf16") && at::native::cpublas::could_pack(at::kBFloat16);
#else
  return false;
#endif
}

#ifdef HAS_LINEAR
#define WITH_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

constexpr int64_t round_up(int64_t rows) {
  return (rows + kBlock - 1) / kBlock * kBlock;
}

// ---- Operands: a left one has dense rows, or tiles; a right one has panels of columns, and in them pairs of rows ----

struct Vectors {
  __m512i of[16];
};

// Loads 32 numbers of a row of a dense matrix, or zeros after its last row.
WITH_AMX inline __m512i load(const BFloat16* matrix, int64_t rows, int64_t columns, int64_t row, int64_t column) {
  return row < rows ? _mm512_loadu_si512(matrix + row * columns + column) : _mm512_setzero_si512();
}

// Pairs the first or the second 16 numbers of two rows.
WITH_AMX inline __m512i pair(__m512i even, __m512i odd, int half) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i first = _mm512_add_epi32(lanes, _mm512_set1_epi32(16 * half));
  const __m512i second = _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(32)), 16);
  return _mm512_permutex2var_epi16(even, _mm512_or_si512(first, second), odd);
}

// Transposes 16 x 16 pairs.
WITH_AMX inline void transpose(Vectors& rows) {
  Vectors other;
  for (int i = 0; i < 16; i += 2) {
    other.of[i] = _mm512_unpacklo_epi32(rows.of[i], rows.of[i + 1]);
    other.of[i + 1] = _mm512_unpackhi_epi32(rows.of[i], rows.of[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      rows.of[i + 2 * j] = _mm512_unpacklo_epi64(other.of[i + j], other.of[i + j + 2]);
      rows.of[i + 2 * j + 1] = _mm512_unpackhi_epi64(other.of[i + j], other.of[i + j + 2]);
    }
  for (int i = 0; i < 16; i += 8)
    for (int j = i; j < i + 4; ++j) {
      other.of[j] = _mm512_shuffle_i32x4(rows.of[j], rows.of[j + 4], 0x88);
      other.of[j + 4] = _mm512_shuffle_i32x4(rows.of[j], rows.of[j + 4], 0xdd);
    }
  for (int i = 0; i < 8; ++i) {
    rows.of[i] = _mm512_shuffle_i32x4(other.of[i], other.of[i + 8], 0x88);
    rows.of[i + 8] = _mm512_shuffle_i32x4(other.of[i], other.of[i + 8], 0xdd);
  }
}

// Where the pair that begins with `row` is in a right operand of `rows` rows.
ORCH_INLINE BFloat16* in_panel(BFloat16* right, int64_t rows, int64_t row, int64_t column) {
  return right + column / kBlock * kBlock * rows + row * kBlock + column % kBlock * 2;
}

// Arranges the pairs of rows from `first` up to, but not including, `last` as a right operand with zeros at its end.
WITH_AMX void arrange_pairs(
    const BFloat16* from, int64_t rows, int64_t columns, int64_t first, int64_t last, BFloat16* right) {
  for (int64_t row = 2 * first; row < 2 * last; row += 2)
    for (int64_t column = 0; column < columns; column += kBlock) {
      const __m512i even = load(from, rows, columns, row, column), odd = load(from, rows, columns, row + 1, column);
      BFloat16* target = in_panel(right, round_up(rows), row, column);
      for (int half = 0; half < 2; ++half)
        _mm512_storeu_si512(target + half * 32, pair(even, odd, half));
    }
}

// Arranges 16 rows of weights as columns of a right operand.
WITH_AMX void arrange_weights(const BFloat16* from, int64_t inputs, int64_t output, BFloat16* right) {
  for (int64_t input = 0; input < inputs; input += kBlock) {
    Vectors rows;
    for (int i = 0; i < 16; ++i)
      rows.of[i] = _mm512_loadu_si512(from + (output + i) * inputs + input);
    transpose(rows);
    for (int i = 0; i < 16; ++i)
      _mm512_storeu_si512(in_panel(right, inputs, input + 2 * i, output), rows.of[i]);
  }
}

// Stores 32 columns as rows of a left operand in tiles, with zeros at their ends, and their sums.
WITH_AMX void transpose_columns(
    const BFloat16* from, int64_t rows, int64_t columns, int64_t column, BFloat16* left, float* sums) {
  const int64_t padded = round_up(rows);
  __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t row = 0; row < padded; row += kBlock)
    for (int half = 0; half < 2; ++half) {
      Vectors pairs;
      for (int i = 0; i < 16; ++i) {
        const __m512i even = load(from, rows, columns, row + 2 * i, column);
        pairs.of[i] = pair(even, load(from, rows, columns, row + 2 * i + 1, column), half);
        const __m512i second = _mm512_and_si512(pairs.of[i], _mm512_set1_epi32(static_cast<int>(0xffff0000)));
        sum[half] = _mm512_add_ps(sum[half], _mm512_castsi512_ps(_mm512_slli_epi32(pairs.of[i], 16)));
        sum[half] = _mm512_add_ps(sum[half], _mm512_castsi512_ps(second));
      }
      transpose(pairs);
      for (int i = 0; i < 16; ++i)
        _mm512_storeu_si512(left + (column + kTile * half) * padded + kTile * row + i * kBlock, pairs.of[i]);
    }
  for (int half = 0; half < 2; ++half)
    _mm512_storeu_ps(sums + column + 16 * half, sum[half]);
}

// ---- Products -----------------------------------------------------------------------------------------------------

// left [m, k] x right [k, n], in FP32, or in BF16 plus the bias; n and k are multiples of 32, and so is m if the left
// operand has tiles; otherwise it is at least 32.
template <typename T>
struct Product {
  const BFloat16 *left, *right;
  bool has_tiles; // the left operand
  int64_t m, n, k;
  T* result;
  const float* bias;
};

// LDTILECFG of Intel's manual: a palette, and from bytes 16 and 48 on the bytes per row and the rows of each register.
constexpr std::array<std::uint8_t, 64> configuration() {
  std::array<std::uint8_t, 64> bytes{1};
  for (int i = 0; i < 8; ++i) {
    bytes[16 + 2 * i] = 64;
    bytes[48 + i] = kTile;
  }
  return bytes;
}
alignas(64) constexpr auto kConfiguration = configuration();

// Computes a block of FP32 sums, whose rows begin `stride` numbers apart. The right operand stays in the L2 cache, as
// _tile_stream_loadd hints, so that it does not evict the rows of the left one, which are used again, from the L1 cache.
template <typename T>
WITH_AMX inline void sum(const Product<T>& product, int64_t row, int64_t column, float* sums, int64_t stride) {
  const int64_t k = product.k, step = product.has_tiles ? kTile * kBlock : kBlock;
  const int64_t bytes = 2 * (product.has_tiles ? kBlock : k);
  const BFloat16 *left = product.left + row * k, *right = product.right + column * k;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < k; i += kBlock, left += step, right += kBlock * kBlock) {
    _tile_loadd(4, left, bytes);
    _tile_stream_loadd(6, right, 4 * kBlock);
    _tile_stream_loadd(7, right + kBlock, 4 * kBlock);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + kTile * k, bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 4 * stride);
  _tile_stored(1, sums + kTile, 4 * stride);
  _tile_stored(2, sums + kTile * stride, 4 * stride);
  _tile_stored(3, sums + kTile * stride + kTile, 4 * stride);
}

// Stores a row of a block in BF16, and adds the bias, if there is one.
WITH_AMX inline void store(const float* sums, const float* bias, BFloat16* to) {
  __m512 first = _mm512_load_ps(sums), second = _mm512_load_ps(sums + 16);
  if (bias) {
    first = _mm512_add_ps(first, _mm512_loadu_ps(bias));
    second = _mm512_add_ps(second, _mm512_loadu_ps(bias + 16));
  }
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
}

void store(const float* sums, const float*, float* to) {
  std::copy_n(sums, kBlock, to);
}

// Computes the blocks from `first` up to, but not including, `last`: those of all rows and a panel of columns, then
// those of the next panel.
template <typename T>
WITH_AMX void multiply_blocks(const Product<T>& product, int64_t first, int64_t last) {
  alignas(64) float sums[kBlock * kBlock];
  const int64_t n = product.n, columns = n / kBlock, height = round_up(product.m) / kBlock;
  const int64_t panel = std::clamp<int64_t>(kPanelBytes / (2 * kBlock * product.k), 1, columns);
  _tile_loadconfig(kConfiguration.data());
  for (int64_t i = first; i < last; ++i) {
    const int64_t start = i / (panel * height) * panel, width = std::min(panel, columns - start);
    const int64_t in_panel = i - start * height, row = in_panel / width * kBlock;
    const int64_t column = (start + in_panel % width) * kBlock, rows = std::min(kBlock, product.m - row);
    T* to = product.result + row * n + column;
    for (int64_t j = 0; j < rows; ++j) // Results are rarely in a cache: their lines arrive while they are computed.
      for (int64_t line = 0; line < kBlock; line += 64 / sizeof(T))
        __builtin_prefetch(to + j * n + line, 1);
    if constexpr (std::is_same_v<T, float>)
      if (rows == kBlock) {
        sum(product, row, column, to, n);
        continue;
      }
    const int64_t repeated = kBlock - rows; // rows before the last ones are computed again
    sum(product, row - repeated, column, sums, kBlock);
    for (int64_t j = 0; j < rows; ++j)
      store(sums + (repeated + j) * kBlock, product.bias ? product.bias + column : nullptr, to + j * n);
  }
  _tile_release();
}

template <typename T>
void multiply(const Product<T>& product) {
  at::parallel_for(0, round_up(product.m) / kBlock * (product.n / kBlock), 1, [&](int64_t first, int64_t last) {
    multiply_blocks(product, first, last);
  });
}

// ---- Operator -----------------------------------------------------------------------------------------------------

struct Linear : torch::autograd::Function<Linear> {
  // The weights are [outputs, inputs], and may be a view of transposed ones, as their gradient then is.
  // `rows` and `converted` are the input and the weights in BF16; gradients are those of the input and the weights.
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
      const MaybeTensor& bias, const at::Tensor& rows, const at::Tensor& converted) {
    at::AutoDispatchBelowADInplaceOrView below;
    const int64_t outputs = weight.size(0), inputs = weight.size(1);
    const bool is_transposed = !converted.is_contiguous();
    const auto left = rows.contiguous(), right = is_transposed ? arrange(converted.t()) : arrange_transposed(converted);
    auto output = at::empty({rows.size(0), outputs}, rows.options());
    const auto* added = bias ? bias->const_data_ptr<float>() : nullptr;
    multiply<BFloat16>(
        {left.const_data_ptr<BFloat16>(), right.const_data_ptr<BFloat16>(), false, rows.size(0), outputs, inputs,
         output.data_ptr<BFloat16>(), added});
    // What torch's product saves, because either of them may compute a checkpointed module again.
    context->save_for_backward(
        {weight.requires_grad() ? rows : at::Tensor(), input.requires_grad() ? converted.t() : at::Tensor()});
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["is_transposed"] = is_transposed;
    context->saved_data["is_converted"] = input.scalar_type() == at::kFloat;
    return output;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const bool has_bias = context->saved_data.at("has_bias").toBool();
    const bool is_converted = context->saved_data.at("is_converted").toBool();
    const bool is_transposed = context->saved_data.at("is_transposed").toBool();
    const bool trains_bias = has_bias && context->needs_input_grad(2);
    at::Tensor gradient = gradients[0], of_input, of_weight, of_bias;
    if (needs_operators(gradient) || !linear_is_fast()) {
      if (context->needs_input_grad(0))
        of_input = gradient.mm(with_history(saved[1].t(), 1)).to(is_converted ? at::kFloat : at::kBFloat16);
      if (context->needs_input_grad(1))
        of_weight = gradient.t().mm(is_converted ? with_history(saved[0], 0) : saved[0]).to(at::kFloat);
    } else {
      gradient = gradient.contiguous();
      if (context->needs_input_grad(0)) {
        const auto right =
            is_transposed ? arrange_transposed(saved[1].contiguous()) : arrange(saved[1].t().contiguous());
        of_input = is_converted ? input_gradient<float>(gradient, right) : input_gradient<BFloat16>(gradient, right);
      }
      if (context->needs_input_grad(1)) {
        const auto input = saved[0].contiguous();
        if (is_transposed)
          of_weight = multiply_transposed(input, gradient).first.t();
        else
          std::tie(of_weight, of_bias) = multiply_transposed(gradient, input);
      }
    }
    if (trains_bias && !of_bias.defined())
      of_bias = gradient.sum(0, false, at::kFloat);
    return {of_input, of_weight, trains_bias ? of_bias : at::Tensor(), {}, {}};
  }

  // Returns what the forward pass converted to BF16 with the history of that argument, which may have changed since.
  static at::Tensor with_history(const at::Tensor& converted, size_t argument) {
    if (!at::GradMode::is_enabled())
      return converted;
    const auto original = converted.to(at::kFloat);
    if (const auto edge = torch::autograd::get_current_node()->next_edge(argument); edge.is_valid())
      torch::autograd::impl::set_gradient_edge(original, edge);
    return original.to(at::kBFloat16);
  }

  // Arranges a matrix as a right operand, with a multiple of rows.
  static at::Tensor arrange(const at::Tensor& matrix) {
    const int64_t rows = matrix.size(0), columns = matrix.size(1), padded = round_up(rows);
    const auto right = at::empty({columns, padded}, matrix.options());
    const auto* from = matrix.const_data_ptr<BFloat16>();
    auto* to = right.data_ptr<BFloat16>();
    at::parallel_for(0, padded / 2, kBlock, [&](int64_t first, int64_t last) {
      arrange_pairs(from, rows, columns, first, last, to);
    });
    return right;
  }

  // Arranges the transposed of a matrix as a right operand: [columns, rows].
  static at::Tensor arrange_transposed(const at::Tensor& matrix) {
    const int64_t rows = matrix.size(0), columns = matrix.size(1);
    const auto right = at::empty({rows, columns}, matrix.options());
    const auto* from = matrix.const_data_ptr<BFloat16>();
    auto* to = right.data_ptr<BFloat16>();
    at::parallel_for(0, rows / 16, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        arrange_weights(from, columns, 16 * i, to);
    });
    return right;
  }

  // `right` has [inputs, outputs] numbers.
  template <typename T>
  static at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& right) {
    const int64_t rows = gradient.size(0), outputs = gradient.size(1), inputs = right.numel() / outputs;
    auto result = at::empty({rows, inputs}, gradient.options().dtype(c10::CppTypeToScalarType<T>::value));
    multiply<T>(
        {gradient.const_data_ptr<BFloat16>(), right.const_data_ptr<BFloat16>(), false, rows, inputs, outputs,
         result.template data_ptr<T>(), nullptr});
    return result;
  }

  // Multiplies the transposed of a matrix with another of as many rows, and sums the columns of the first, in FP32.
  static std::pair<at::Tensor, at::Tensor> multiply_transposed(const at::Tensor& first, const at::Tensor& second) {
    const int64_t rows = first.size(0), m = first.size(1), n = second.size(1), padded = round_up(rows);
    const auto left = at::empty({m, padded}, first.options());
    auto result = at::empty({m, n}, first.options().dtype(at::kFloat));
    auto sums = at::empty({m}, result.options());
    const auto* from = first.const_data_ptr<BFloat16>();
    auto* to = left.data_ptr<BFloat16>();
    auto* column_sums = sums.data_ptr<float>();
    at::parallel_for(0, m / kBlock, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        transpose_columns(from, rows, m, i * kBlock, to, column_sums);
    });
    const auto right = arrange(second);
    multiply<float>(
        {to, right.const_data_ptr<BFloat16>(), true, m, n, padded, result.data_ptr<float>(), nullptr});
    return {result, sums};
  }
};
#endif

// The weights are [outputs, inputs], or [inputs, outputs] if they are transposed.
at::Tensor linear(
    const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias, bool is_transposed) {
  const auto is_parameter = [](const at::Tensor& tensor, int64_t dimensions) {
    return tensor.scalar_type() == at::kFloat && tensor.dim() == dimensions && tensor.is_contiguous();
  };
  TORCH_CHECK(linear_is_fast(), "orch::linear: this CPU has no AMX");
  TORCH_CHECK_VALUE(
      (input.scalar_type() == at::kBFloat16 || input.scalar_type() == at::kFloat) && input.dim() > 1 &&
          input.numel() >= kBlock * input.size(-1) && is_parameter(weight, 2) && weight.numel() > 0 &&
          weight.size(0) % kBlock == 0 && weight.size(1) % kBlock == 0 &&
          input.size(-1) == weight.size(!is_transposed) &&
          (!bias || (is_parameter(*bias, 1) && bias->size(0) == weight.size(is_transposed))),
      "orch::linear: expected a BF16 or FP32 input [..., inputs], and contiguous FP32 weights [outputs, inputs] and "
      "bias [outputs], with multiples of ", kBlock, " inputs and outputs, and at least as many rows of inputs");
#ifdef HAS_LINEAR
  // Weights that are used again under the same autocast, as in recurrent models, are converted once, as by torch.
  const bool is_autocast = at::autocast::is_autocast_enabled(at::kCPU);
  const auto converted =
      is_autocast ? at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU) : weight.to(at::kBFloat16);
  const auto by_output = [&](const at::Tensor& matrix) { return is_transposed ? matrix.t() : matrix; };
  auto sizes = input.sizes().vec();
  sizes.back() = weight.size(is_transposed);
  const auto rows = input.reshape({-1, input.size(-1)});
  const auto used = input.scalar_type() == at::kFloat ? rows.detach().to(at::kBFloat16) : rows;
  return Linear::apply(rows, by_output(weight), bias, used, by_output(converted).detach()).view(sizes);
#else
  return {};
#endif
}

} // namespace

TORCH_LIBRARY_FRAGMENT(orch, library) {
  library.def(
      "linear(Tensor input, Tensor weight, Tensor? bias=None, bool is_transposed=False) -> Tensor", &linear);
  library.def("linear_is_fast() -> bool", &linear_is_fast);
}

} // namespace orch_linear
