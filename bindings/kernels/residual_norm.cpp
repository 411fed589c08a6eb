// torch.ops.orch.residual_norm: LayerNorm(residual + dropout(x)), in FP32, as layers like BERT's end.
//
// Three operators, and conversions of BF16, read and write the activations several times, and so do their gradients.
// The same elements are dropped as by torch.ops.orch.dropout(x). The number of threads does not change a bit.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "dropout.h"
#include "elementwise.h"
#include "gradients.h"
#include "versions.h"

namespace orch_residual_norm {
namespace {

using at::BFloat16;
using orch_dropout::Block;
using orch_dropout::kBlock;
using orch_elementwise::convert;
using orch_elementwise::Stored;
using std::int64_t;

constexpr int64_t kRows = 32; // of a block, whose gradients of the parameters are summed together

// The factors of dropout for rows of a multiple of kBlock elements.
struct Mask {
  uint64_t seed;
  uint32_t threshold;
  float scale;

  Mask(double p, int64_t seed)
      : seed(static_cast<uint64_t>(seed)),
        threshold(orch_dropout::word_threshold(p)),
        scale(1 / static_cast<float>(1 - p)) {}

  ORCH_INLINE void draw(int64_t element, float* __restrict factors) const {
    Block words;
    orch_dropout::threefry(seed, static_cast<uint64_t>(element / kBlock) * orch_dropout::kLanes, words);
    const uint32_t* __restrict word = &words[0][0];
    const uint32_t smallest = threshold; // a copy, which storing the factors leaves unchanged also for the compiler
    const float kept = scale;
    for (int i = 0; i < kBlock; ++i)
      factors[i] = word[i] >= smallest ? kept : 0.0f;
  }
};

// Writes the sum of a row and its residual, and returns the mean and the inverse standard deviation.
template <typename T>
ORCH_INLINE std::pair<float, float> normalize(
    const T* from, const float* __restrict residual, const float* __restrict w, const float* __restrict b,
    const Mask& mask, int64_t first, int64_t size, float epsilon, float* __restrict sums, float* __restrict y) {
  const auto* __restrict x = reinterpret_cast<const Stored<T>*>(from);
  float factors[kBlock], total = 0, squares = 0;
  for (int64_t j = 0; j < size; j += kBlock) {
    mask.draw(first + j, factors);
    for (int64_t i = 0; i < kBlock; ++i)
      sums[j + i] = residual[j + i] + convert<float, T>(x[j + i]) * factors[i];
  }
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < size; ++j)
    total += sums[j];
  const float mean = total / static_cast<float>(size);
#pragma omp simd reduction(+ : squares)
  for (int64_t j = 0; j < size; ++j)
    squares += (sums[j] - mean) * (sums[j] - mean);
  const float inverse = 1 / std::sqrt(squares / static_cast<float>(size) + epsilon);
  for (int64_t j = 0; j < size; ++j)
    y[j] = (sums[j] - mean) * inverse * w[j] + b[j];
  return {mean, inverse};
}

// Writes the gradients of a row and its residual, and adds those of the parameters.
template <typename T>
ORCH_INLINE void differentiate(
    const float* __restrict g, const float* __restrict sums, const float* __restrict w, float mean, float inverse,
    const Mask& mask, int64_t first, int64_t size, T* to, float* __restrict of_residual, float* __restrict of_weight,
    float* __restrict of_bias) {
  auto* __restrict of_input = reinterpret_cast<Stored<T>*>(to);
  float factors[kBlock], total = 0, product = 0;
#pragma omp simd reduction(+ : total, product)
  for (int64_t j = 0; j < size; ++j) {
    total += g[j] * w[j];
    product += g[j] * w[j] * ((sums[j] - mean) * inverse);
  }
  total /= static_cast<float>(size);
  product /= static_cast<float>(size);
  for (int64_t j = 0; j < size; j += kBlock) {
    mask.draw(first + j, factors);
    for (int64_t k = j; k < j + kBlock; ++k) {
      const float normal = (sums[k] - mean) * inverse;
      const float result = (g[k] * w[k] - total - normal * product) * inverse;
      of_residual[k] = result;
      of_input[k] = convert<T, float>(result * factors[k - j]);
      of_weight[k] += g[k] * normal;
      of_bias[k] += g[k];
    }
  }
}

struct ResidualNorm : torch::autograd::Function<ResidualNorm> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& input, const at::Tensor& residual,
      const at::Tensor& weight, const at::Tensor& bias, double p, double epsilon, int64_t seed) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto dense = residual.contiguous();
    auto sums = at::empty_like(dense), output = at::empty_like(dense);
    auto stats = at::empty({2, dense.numel() / dense.size(-1)}, dense.options());
    if (input.scalar_type() == at::kFloat)
      normalize_rows<float>(input.contiguous(), dense, weight, bias, Mask(p, seed), epsilon, sums, stats, output);
    else
      normalize_rows<BFloat16>(input.contiguous(), dense, weight, bias, Mask(p, seed), epsilon, sums, stats, output);
    context->save_for_backward({weight, sums, stats});
    context->saved_data["p"] = p;
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["seed"] = seed;
    context->saved_data["is_float"] = input.scalar_type() == at::kFloat;
    return output;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& data = context->saved_data;
    const at::Tensor &weight = saved[0], &sums = saved[1];
    const double p = data.at("p").toDouble();
    const int64_t seed = data.at("seed").toInt();
    const bool is_float = data.at("is_float").toBool();
    auto results = needs_operators(gradients[0])
        ? by_operators(gradients[0], sums, weight, p, seed, data.at("epsilon").toDouble(), is_float)
        : is_float ? of_rows<float>(gradients[0].contiguous(), sums.contiguous(), weight, saved[2], Mask(p, seed))
                   : of_rows<BFloat16>(gradients[0].contiguous(), sums.contiguous(), weight, saved[2], Mask(p, seed));
    results.insert(results.end(), 3, at::Tensor());
    return results;
  }

 private:
  template <typename T>
  static void normalize_rows(
      const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
      const Mask& mask, double epsilon, const at::Tensor& sums, const at::Tensor& stats, const at::Tensor& output) {
    const int64_t size = residual.size(-1), rows = stats.size(1);
    const T* x = input.const_data_ptr<T>();
    const float *r = residual.const_data_ptr<float>(), *w = weight.const_data_ptr<float>();
    const float* b = bias.const_data_ptr<float>();
    float *s = sums.data_ptr<float>(), *stat = stats.data_ptr<float>(), *y = output.data_ptr<float>();
    at::parallel_for(0, rows, kRows, [&](int64_t first, int64_t last) {
      orch_versions::run(
          [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
            for (int64_t i = begin; i < end; ++i) {
              const int64_t at = i * size;
              const auto [mean, inverse] = normalize(
                  x + at, r + at, w, b, mask, at, size, static_cast<float>(epsilon), s + at, y + at);
              stat[i] = mean;
              stat[rows + i] = inverse;
            }
          },
          first, last);
    });
  }

  template <typename T>
  static torch::autograd::variable_list of_rows(
      const at::Tensor& gradient, const at::Tensor& sums, const at::Tensor& weight, const at::Tensor& stats,
      const Mask& mask) {
    const int64_t size = sums.size(-1), rows = stats.size(1), blocks = (rows + kRows - 1) / kRows;
    auto of_input = at::empty_like(sums, sums.options().dtype(c10::CppTypeToScalarType<T>::value));
    auto of_residual = at::empty_like(sums), parts = at::zeros({2, blocks, size}, weight.options());
    const float *g = gradient.const_data_ptr<float>(), *s = sums.const_data_ptr<float>();
    const float *w = weight.const_data_ptr<float>(), *stat = stats.const_data_ptr<float>();
    T* dx = of_input.template data_ptr<T>();
    float *dr = of_residual.template data_ptr<float>(), *part = parts.template data_ptr<float>();
    at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
      orch_versions::run(
          [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
            for (int64_t i = begin * kRows; i < std::min(end * kRows, rows); ++i) {
              const int64_t at = i * size;
              float* of_weight = part + i / kRows * size;
              differentiate(
                  g + at, s + at, w, stat[i], stat[rows + i], mask, at, size, dx + at, dr + at, of_weight,
                  of_weight + blocks * size);
            }
          },
          first, last);
    });
    const auto of_parameters = parts.sum(1);
    return {of_input, of_residual, of_parameters[0], of_parameters[1]};
  }

  // The same by operators of torch, which can be differentiated again: the sums get the history of what was added.
  static torch::autograd::variable_list by_operators(
      const at::Tensor& gradient, const at::Tensor& sums, const at::Tensor& weight, double p, int64_t seed,
      double epsilon, bool is_float) {
    const auto type = is_float ? at::kFloat : at::kBFloat16;
    const auto with_history = [](at::Tensor zeros, size_t argument) {
      if (const auto edge = torch::autograd::get_current_node()->next_edge(argument);
          at::GradMode::is_enabled() && edge.is_valid())
        torch::autograd::impl::set_gradient_edge(zeros, edge);
      return zeros;
    };
    const auto input = with_history(at::zeros(sums.sizes(), sums.options().dtype(type)), 0);
    const auto residual = with_history(at::zeros(sums.sizes(), sums.options()), 1);
    const auto total = sums + orch_dropout::call_by_seed(input, p, seed) + residual;
    const auto centred = total - total.mean(-1, true);
    const auto inverse = (centred.square().mean(-1, true) + epsilon).rsqrt();
    const auto normal = centred * inverse, weighted = gradient * weight;
    const auto of_total =
        inverse * (weighted - weighted.mean(-1, true) - normal * (weighted * normal).mean(-1, true));
    return {
        orch_dropout::call_by_seed(of_total.to(type), p, seed), of_total,
        (gradient * normal).sum_to_size(weight.sizes()), gradient.sum_to_size(weight.sizes())};
  }
};

at::Tensor residual_norm(
    const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias, double p,
    double epsilon) {
  const auto is_parameter = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kFloat && tensor.dim() == 1 && tensor.is_contiguous() &&
        tensor.size(0) == residual.size(-1);
  };
  TORCH_CHECK_VALUE(
      (input.scalar_type() == at::kFloat || input.scalar_type() == at::kBFloat16) &&
          residual.scalar_type() == at::kFloat && input.sizes() == residual.sizes() && residual.dim() > 0 &&
          residual.numel() > 0 && residual.size(-1) % kBlock == 0 && is_parameter(weight) && is_parameter(bias) &&
          p >= 0 && p < 1,
      "orch::residual_norm: expected an FP32 or BF16 input and an FP32 residual of the same size [..., size], "
      "contiguous FP32 parameters [size], a multiple of ", kBlock, " as size, and a probability below 1");
  return ResidualNorm::apply(input, residual, weight, bias, p, epsilon, orch_dropout::next_seed());
}

} // namespace

TORCH_LIBRARY_FRAGMENT(orch, library) {
  library.def(
      "residual_norm(Tensor input, Tensor residual, Tensor weight, Tensor bias, float p, float epsilon) -> Tensor",
      &residual_norm);
}

} // namespace orch_residual_norm
