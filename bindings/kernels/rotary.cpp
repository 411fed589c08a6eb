// torch.ops.orch.rotate: rotary embeddings, x * cos + cat(-x2, x1) * sin, where x1 and x2 are the halves of x.
//
// transformers' models compute it with five operators, and its gradient with twice as many, which also copy the halves.

#include <cstdint>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "elementwise.h"
#include "gradients.h"
#include "operands.h"
#include "versions.h"

namespace orch_rotary {
namespace {

using at::BFloat16;
using orch_attention::View;
using orch_elementwise::convert;
using orch_elementwise::Stored;
using std::int64_t;

constexpr int64_t kGrain = 256; // the fewest rows that justify another thread

// Backwards, each half gets the sine of the other one.
template <bool back, typename From, typename To>
ORCH_INLINE void rotate_row(const From* from, const float* cos, const float* sin, int64_t half, To* to) {
  const auto* __restrict x1 = reinterpret_cast<const Stored<From>*>(from);
  const auto* __restrict x2 = x1 + half;
  auto* __restrict y1 = reinterpret_cast<Stored<To>*>(to);
  auto* __restrict y2 = y1 + half;
#pragma GCC ivdep
  for (int64_t j = 0; j < half; ++j) {
    const float a = convert<float, From>(x1[j]), b = convert<float, From>(x2[j]);
    const float first = back ? b * sin[j + half] : -b * sin[j], second = back ? -a * sin[j] : a * sin[j + half];
    y1[j] = convert<To, float>(a * cos[j] + first);
    y2[j] = convert<To, float>(b * cos[j + half] + second);
  }
}

// Rotates rows of [batch, heads, rows, depth] by angles [batch or 1, rows, depth], or back. Models store them in the
// order of [batch, rows, heads].
template <bool back, typename From, typename To>
void rotate(const at::Tensor& input, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& output) {
  const int64_t heads = input.size(1), rows = input.size(2), half = input.size(3) / 2;
  const int64_t angles = cos.size(0) > 1 ? rows * 2 * half : 0; // from one entry of the batch to the next
  const View<From> from(input);
  const View<To> to(output);
  const float *cosines = cos.const_data_ptr<float>(), *sines = sin.const_data_ptr<float>();
  at::parallel_for(0, input.size(0) * rows * heads, kGrain, [&](int64_t first, int64_t last) {
    orch_versions::run(
        [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t head = i % heads, row = i / heads % rows, batch = i / heads / rows;
            rotate_row<back, From, To>(
                from.at(batch, head, row), cosines + batch * angles + row * 2 * half,
                sines + batch * angles + row * 2 * half, half, to.at(batch, head, row));
          }
        },
        first, last);
  });
}

at::Tensor with_dense_rows(const at::Tensor& tensor) {
  return tensor.stride(3) == 1 ? tensor : tensor.contiguous();
}

struct Rotate : torch::autograd::Function<Rotate> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& input, const at::Tensor& cos,
      const at::Tensor& sin) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto dense = with_dense_rows(input);
    auto output = at::empty_like(dense, dense.options().dtype(at::kFloat));
    if (input.scalar_type() == at::kFloat)
      rotate<false, float, float>(dense, cos, sin, output);
    else
      rotate<false, BFloat16, float>(dense, cos, sin, output);
    context->save_for_backward({cos, sin});
    context->saved_data["is_float"] = input.scalar_type() == at::kFloat;
    return output;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &gradient = gradients[0], &cos = saved[0], &sin = saved[1];
    const bool is_float = context->saved_data.at("is_float").toBool();
    if (needs_operators(gradient)) {
      const auto halves = (gradient * sin.unsqueeze(1)).chunk(2, -1);
      const auto result = gradient * cos.unsqueeze(1) + at::cat({halves[1], -halves[0]}, -1);
      return {result.to(is_float ? at::kFloat : at::kBFloat16), {}, {}};
    }
    const auto dense = with_dense_rows(gradient);
    auto result = at::empty_like(dense, dense.options().dtype(is_float ? at::kFloat : at::kBFloat16));
    if (is_float)
      rotate<true, float, float>(dense, cos, sin, result);
    else
      rotate<true, float, BFloat16>(dense, cos, sin, result);
    return {result, {}, {}};
  }
};

at::Tensor rotate_heads(const at::Tensor& input, const at::Tensor& cos, const at::Tensor& sin) {
  const auto are_angles = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kFloat && tensor.dim() == 3 && tensor.is_contiguous() &&
        (tensor.size(0) == 1 || tensor.size(0) == input.size(0)) && tensor.size(1) == input.size(2) &&
        tensor.size(2) == input.size(3);
  };
  TORCH_CHECK_VALUE(
      (input.scalar_type() == at::kFloat || input.scalar_type() == at::kBFloat16) && input.dim() == 4 &&
          input.size(3) % 2 == 0 && input.numel() > 0 && are_angles(cos) && are_angles(sin) &&
          cos.size(0) == sin.size(0),
      "orch::rotate: expected an FP32 or BF16 input [batch, heads, rows, depth] with an even depth, and contiguous "
      "FP32 cosines and sines [batch or 1, rows, depth]");
  return Rotate::apply(input, cos, sin);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(orch, library) {
  library.def("rotate(Tensor input, Tensor cos, Tensor sin) -> Tensor", &rotate_heads);
}

} // namespace orch_rotary
