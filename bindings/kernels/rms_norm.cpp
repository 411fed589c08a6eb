// torch.ops.orch.rms_norm: x / sqrt(mean(x * x) + epsilon) * weight over the last dimension, in FP32.
//
// transformers' models compute it with six operators, and its gradients with twice as many, each of which reads and
// writes all of x. Here the forward pass reads x once, and the backward pass twice, the second time from a cache. The
// number of threads does not change a bit.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "gradients.h"
#include "versions.h"

namespace orch_rms_norm {
namespace {

using std::int64_t;

constexpr int64_t kRows = 32; // of a block, whose gradients of the weight are summed together

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& input, const at::Tensor& weight, double epsilon) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto dense = input.contiguous();
    const int64_t size = dense.size(-1), rows = dense.numel() / size;
    auto output = at::empty_like(dense), inverses = at::empty({rows}, dense.options());
    const float *x = dense.const_data_ptr<float>(), *w = weight.const_data_ptr<float>();
    float *y = output.data_ptr<float>(), *r = inverses.data_ptr<float>();
    at::parallel_for(0, rows, kRows, [&](int64_t first, int64_t last) {
      orch_versions::run(
          [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
            for (int64_t i = begin; i < end; ++i)
              r[i] = normalize(x + i * size, w, size, epsilon, y + i * size);
          },
          first, last);
    });
    context->save_for_backward({input, weight, inverses});
    context->saved_data["epsilon"] = epsilon;
    return output;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    auto [of_input, of_weight] = needs_operators(gradients[0])
        ? differentiate(gradients[0], saved[0], saved[1], context->saved_data.at("epsilon").toDouble())
        : differentiate_rows(gradients[0].contiguous(), saved[0].contiguous(), saved[1], saved[2]);
    return {of_input, of_weight, {}};
  }

 private:
  // Normalizes one row, and returns the factor before the weights.
  static ORCH_INLINE float normalize(
      const float* __restrict x, const float* __restrict w, int64_t size, double epsilon, float* __restrict y) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < size; ++j)
      sum += x[j] * x[j];
    const float r = 1 / std::sqrt(sum / static_cast<float>(size) + static_cast<float>(epsilon));
    for (int64_t j = 0; j < size; ++j)
      y[j] = w[j] * (x[j] * r);
    return r;
  }

  // Writes the gradient of one row, and adds that of the weights.
  static ORCH_INLINE void differentiate_row(
      const float* __restrict g, const float* __restrict x, const float* __restrict w, float r, int64_t size,
      float* __restrict of_input, float* __restrict of_weight) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < size; ++j)
      sum += g[j] * w[j] * x[j];
    const float common = sum * r * r * r / static_cast<float>(size);
    for (int64_t j = 0; j < size; ++j) {
      of_input[j] = g[j] * w[j] * r - x[j] * common;
      of_weight[j] += g[j] * (x[j] * r);
    }
  }

  static std::pair<at::Tensor, at::Tensor> differentiate_rows(
      const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& inverses) {
    const int64_t size = input.size(-1), rows = inverses.numel(), blocks = (rows + kRows - 1) / kRows;
    auto of_input = at::empty_like(input), parts = at::zeros({blocks, size}, weight.options());
    const float *g = gradient.const_data_ptr<float>(), *x = input.const_data_ptr<float>();
    const float *w = weight.const_data_ptr<float>(), *r = inverses.const_data_ptr<float>();
    float *dx = of_input.data_ptr<float>(), *dw = parts.data_ptr<float>();
    at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
      orch_versions::run(
          [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
            for (int64_t i = begin * kRows; i < std::min(end * kRows, rows); ++i)
              differentiate_row(
                  g + i * size, x + i * size, w, r[i], size, dx + i * size, dw + i / kRows * size);
          },
          first, last);
    });
    return {of_input, parts.sum(0)};
  }

  // The same by operators of torch, which can be differentiated again.
  static std::pair<at::Tensor, at::Tensor> differentiate(
      const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, double epsilon) {
    const auto r = (input.square().mean(-1, true) + epsilon).rsqrt();
    const auto weighted = gradient * weight;
    const auto of_input = r * weighted - input * (r.pow(3) * (weighted * input).mean(-1, true));
    return {of_input, (gradient * input * r).sum_to_size(weight.sizes())};
  }
};

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  TORCH_CHECK_VALUE(
      input.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat && weight.dim() == 1 &&
          weight.is_contiguous() && input.dim() > 0 && input.numel() > 0 && input.size(-1) == weight.size(0),
      "orch::rms_norm: expected an FP32 input [..., size] and a contiguous FP32 weight [size]");
  return RmsNorm::apply(input, weight, epsilon);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(orch, library) {
  library.def("rms_norm(Tensor input, Tensor weight, float epsilon) -> Tensor", &rms_norm);
}

} // namespace orch_rms_norm
