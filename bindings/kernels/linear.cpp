// torch.ops.orch.linear: a linear layer of a BF16 input and FP32 parameters, as under autocast, on CPUs with AMX.
//
// oneDNN generates kernels for every number of rows: 5 ms for a product, again after 1,024 others, so that batches of
// different lengths spend more time on that than on products (benchmarks/RESULTS.md). Here, results are computed in
// blocks of a few sizes, and sums over rows are filled up with zeros. Gradients of parameters are summed and stored in
// FP32. The number of threads does not change a bit.

#include <algorithm>
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

#include "threefry.h"

#if defined(__x86_64__) && defined(CPUBLAS_BRGEMM_F32F32F32)
#define HAS_LINEAR
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // gcc 12 warns about its own intrinsics
#endif

namespace orch_linear {
namespace {

using at::BFloat16;
using std::int64_t;
using MaybeTensor = c10::optional<at::Tensor>;

constexpr int64_t kMultiple = 32; // of features: BF16 numbers in a vector register
constexpr int64_t kPanel = 64; // columns of a right operand that are stored together
constexpr int64_t kRows = 256; // the most rows of results that are computed together

bool linear_is_fast() {
#ifdef HAS_LINEAR
  return __builtin_cpu_supports("avx512bf16") && at::native::cpublas::could_pack(at::kBFloat16);
#else
  return false;
#endif
}

#ifdef HAS_LINEAR
#define WITH_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// ---- Operands: a left one has dense rows; a right one has panels of columns, and in them pairs of rows -------------

struct Vectors {
  __m512i of[16];
};

// Loads 32 numbers of a row of a dense matrix, or zeros after its last row.
WITH_AVX512 inline __m512i load(const BFloat16* matrix, int64_t rows, int64_t columns, int64_t row, int64_t column) {
  return row < rows ? _mm512_loadu_si512(matrix + row * columns + column) : _mm512_setzero_si512();
}

// Pairs the first or the second 16 numbers of two rows.
WITH_AVX512 inline __m512i pair(__m512i even, __m512i odd, int half) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i first = _mm512_add_epi32(lanes, _mm512_set1_epi32(16 * half));
  const __m512i second = _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(32)), 16);
  return _mm512_permutex2var_epi16(even, _mm512_or_si512(first, second), odd);
}

// Transposes 16 x 16 pairs.
WITH_AVX512 inline void transpose(Vectors& rows) {
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
  return right + column / kPanel * kPanel * rows + row * kPanel + column % kPanel * 2;
}

// Arranges the pairs of rows from `first` up to, but not including, `last` as a right operand with zeros at its end.
WITH_AVX512 void arrange_pairs(
    const BFloat16* from, int64_t rows, int64_t columns, int64_t first, int64_t last, BFloat16* right) {
  for (int64_t row = 2 * first; row < 2 * last; row += 2)
    for (int64_t column = 0; column < columns; column += kMultiple) {
      const __m512i even = load(from, rows, columns, row, column), odd = load(from, rows, columns, row + 1, column);
      BFloat16* target = in_panel(right, round_up(rows, kMultiple), row, column);
      for (int half = 0; half < 2; ++half)
        _mm512_storeu_si512(target + half * 32, pair(even, odd, half));
    }
}

// Arranges 16 rows of weights as columns of a right operand.
WITH_AVX512 void arrange_weights(const BFloat16* from, int64_t inputs, int64_t output, BFloat16* right) {
  for (int64_t input = 0; input < inputs; input += kMultiple) {
    Vectors rows;
    for (int i = 0; i < 16; ++i)
      rows.of[i] = _mm512_loadu_si512(from + (output + i) * inputs + input);
    transpose(rows);
    for (int i = 0; i < 16; ++i)
      _mm512_storeu_si512(in_panel(right, inputs, input + 2 * i, output), rows.of[i]);
  }
}

// Stores 32 columns as rows of a left operand with zeros at their ends, and their sums.
WITH_AVX512 void transpose_columns(
    const BFloat16* from, int64_t rows, int64_t columns, int64_t column, BFloat16* left, float* sums) {
  const int64_t padded = round_up(rows, kMultiple);
  __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t row = 0; row < padded; row += kMultiple)
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
        _mm512_storeu_si512(left + (column + 16 * half + i) * padded + row, pairs.of[i]);
    }
  for (int half = 0; half < 2; ++half)
    _mm512_storeu_ps(sums + column + 16 * half, sum[half]);
}

// Adds the bias, if there is one, and rounds to BF16.
WITH_AVX512 void store_rounded(const float* from, const float* bias, int64_t columns, BFloat16* to) {
  for (int64_t j = 0; j < columns; j += 16) {
    const __m512 values = _mm512_loadu_ps(from + j);
    const __m512 sums = bias ? _mm512_add_ps(values, _mm512_loadu_ps(bias + j)) : values;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums)));
  }
}

// result = left [m, k] x right [k, n], in BF16 plus the bias, in FP32 with m and k that are multiples.
template <typename T>
void multiply(
    const at::Tensor& left, const at::Tensor& right, int64_t m, int64_t n, int64_t k, const float* bias, T* result) {
  // oneDNN generates a kernel for every number of rows, so blocks have multiples of 32. The last one may repeat rows.
  const int64_t height = m < kMultiple ? m : std::min(kRows, m / kMultiple * kMultiple);
  const int64_t blocks = (m + height - 1) / height, panels = (n + kPanel - 1) / kPanel;
  const BFloat16 *a = left.const_data_ptr<BFloat16>(), *b = right.const_data_ptr<BFloat16>();
  at::parallel_for(0, blocks * panels, 1, [&](int64_t first, int64_t last) {
    alignas(64) float buffer[kRows * kPanel];
    for (int64_t unit = first; unit < last; ++unit) {
      const int64_t column = unit % panels * kPanel, columns = std::min(kPanel, n - column);
      const int64_t row = unit / panels * height, rows = std::min(height, m - row);
      const int64_t computed = std::min(round_up(rows, kMultiple), m), start = row + rows - computed;
      if constexpr (std::is_same_v<T, float>) {
        float* target = result + start * n + column;
        at::native::cpublas::brgemm(
            computed, columns, k, k, kPanel, n, false, a + start * k, b + column * k, target, true);
      } else {
        at::native::cpublas::brgemm(
            computed, columns, k, k, kPanel, kPanel, false, a + start * k, b + column * k, buffer, true);
        for (int64_t i = row; i < row + rows; ++i)
          store_rounded(
              buffer + (i - start) * kPanel, bias ? bias + column : nullptr, columns, result + i * n + column);
      }
    }
    at::native::cpublas::brgemm_release();
  });
}

// ---- Operator -----------------------------------------------------------------------------------------------------

struct Linear : torch::autograd::Function<Linear> {
  // `converted` are the weights in BF16; the gradient is that of the weights themselves.
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
      const MaybeTensor& bias, const at::Tensor& converted) {
    at::AutoDispatchBelowADInplaceOrView below;
    const int64_t outputs = weight.size(0), inputs = weight.size(1);
    const auto right = at::empty({round_up(outputs, kPanel), inputs}, input.options());
    const auto* weights = converted.const_data_ptr<BFloat16>();
    auto* arranged = right.data_ptr<BFloat16>();
    at::parallel_for(0, outputs / 16, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        arrange_weights(weights, inputs, 16 * i, arranged);
    });
    auto output = at::empty({input.size(0), outputs}, input.options());
    const auto* added = bias ? bias->const_data_ptr<float>() : nullptr;
    multiply(input.contiguous(), right, input.size(0), outputs, inputs, added, output.data_ptr<BFloat16>());
    // What torch's product saves, because either of them may compute a checkpointed module again.
    context->save_for_backward(
        {weight.requires_grad() ? input : at::Tensor(), input.requires_grad() ? converted.t() : at::Tensor()});
    context->saved_data["has_bias"] = bias.has_value();
    return output;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const bool has_bias = context->saved_data.at("has_bias").toBool();
    const bool trains_bias = has_bias && context->needs_input_grad(2);
    at::Tensor gradient = gradients[0], of_input, of_weight, of_bias;
    const bool is_watched = at::GradMode::is_enabled() || // create_graph=True
        c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python) || !is_plain(gradient);
    if (is_watched || !linear_is_fast()) {
      if (context->needs_input_grad(0))
        of_input = gradient.mm(with_history(saved[1].t()));
      if (context->needs_input_grad(1))
        of_weight = gradient.t().mm(saved[0]).to(at::kFloat);
    } else {
      gradient = gradient.contiguous();
      if (context->needs_input_grad(0))
        of_input = input_gradient(gradient, saved[1].t().contiguous());
      if (context->needs_input_grad(1))
        std::tie(of_weight, of_bias) = parameter_gradients(gradient, saved[0].contiguous());
    }
    if (trains_bias && !of_bias.defined())
      of_bias = gradient.sum(0, false, at::kFloat);
    return {of_input, of_weight, trains_bias ? of_bias : at::Tensor(), at::Tensor()};
  }

  static bool is_plain(const at::Tensor& tensor) {
    return tensor.has_storage() && !tensor._is_zerotensor() && !tensor.unsafeGetTensorImpl()->is_python_dispatch();
  }

  // Returns BF16 weights of the forward pass with the history of the weights, which may have changed since.
  static at::Tensor with_history(const at::Tensor& converted) {
    if (!at::GradMode::is_enabled())
      return converted;
    const auto weights = converted.to(at::kFloat);
    if (const auto edge = torch::autograd::get_current_node()->next_edge(1); edge.is_valid())
      torch::autograd::impl::set_gradient_edge(weights, edge);
    return weights.to(at::kBFloat16);
  }

  // Arranges a matrix as a right operand, with a multiple of rows.
  static at::Tensor arrange(const at::Tensor& matrix) {
    const int64_t rows = matrix.size(0), columns = matrix.size(1), padded = round_up(rows, kMultiple);
    const auto right = at::empty({round_up(columns, kPanel), padded}, matrix.options());
    const auto* from = matrix.const_data_ptr<BFloat16>();
    auto* to = right.data_ptr<BFloat16>();
    at::parallel_for(0, padded / 2, kMultiple, [&](int64_t first, int64_t last) {
      arrange_pairs(from, rows, columns, first, last, to);
    });
    return right;
  }

  static at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight) {
    const int64_t rows = gradient.size(0), outputs = weight.size(0), inputs = weight.size(1);
    auto result = at::empty({rows, inputs}, gradient.options());
    multiply(gradient, arrange(weight), rows, inputs, outputs, nullptr, result.data_ptr<BFloat16>());
    return result;
  }

  static std::tuple<at::Tensor, at::Tensor> parameter_gradients(const at::Tensor& gradient, const at::Tensor& input) {
    const int64_t rows = input.size(0), inputs = input.size(1), outputs = gradient.size(1);
    const int64_t padded = round_up(rows, kMultiple);
    const auto left = at::empty({outputs, padded}, input.options());
    auto of_weight = at::empty({outputs, inputs}, input.options().dtype(at::kFloat));
    auto of_bias = at::empty({outputs}, of_weight.options());
    const auto* from = gradient.const_data_ptr<BFloat16>();
    auto* to = left.data_ptr<BFloat16>();
    auto* sums = of_bias.data_ptr<float>();
    at::parallel_for(0, outputs / kMultiple, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        transpose_columns(from, rows, outputs, i * kMultiple, to, sums);
    });
    multiply(left, arrange(input), outputs, inputs, padded, nullptr, of_weight.data_ptr<float>());
    return {of_weight, of_bias};
  }
};
#endif

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias) {
  const auto is_parameter = [](const at::Tensor& tensor, int64_t dimensions) {
    return tensor.scalar_type() == at::kFloat && tensor.dim() == dimensions && tensor.is_contiguous();
  };
  TORCH_CHECK(linear_is_fast(), "orch::linear: this CPU has no AMX");
  TORCH_CHECK_VALUE(
      input.scalar_type() == at::kBFloat16 && input.dim() > 1 && input.numel() > 0 && is_parameter(weight, 2) &&
          weight.numel() > 0 && weight.size(0) % kMultiple == 0 && weight.size(1) % kMultiple == 0 &&
          input.size(-1) == weight.size(1) && (!bias || (is_parameter(*bias, 1) && bias->size(0) == weight.size(0))),
      "orch::linear: expected a BF16 input [..., inputs], and contiguous FP32 weights [outputs, inputs] and bias "
      "[outputs], with multiples of ", kMultiple, " inputs and outputs");
#ifdef HAS_LINEAR
  // Weights that are used again under the same autocast, as in recurrent models, are converted once, as by torch.
  const bool is_autocast = at::autocast::is_autocast_enabled(at::kCPU);
  const auto converted =
      is_autocast ? at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU) : weight.to(at::kBFloat16);
  auto sizes = input.sizes().vec();
  sizes.back() = weight.size(0);
  return Linear::apply(input.reshape({-1, weight.size(1)}), weight, bias, converted.detach()).view(sizes);
#else
  return {};
#endif
}

} // namespace

TORCH_LIBRARY_FRAGMENT(orch, library) {
  library.def("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", &linear);
  library.def("linear_is_fast() -> bool", &linear_is_fast);
}

} // namespace orch_linear
