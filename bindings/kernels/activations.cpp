// aten::gelu, aten::silu and aten::tanh, and their gradients, of dense BF16 and FP32 tensors.
//
// ATen's hyperbolic tangent of BF16 numbers, and GELU that is approximated by it, take 3 to 5 times as long as these,
// and the gradient of GELU, for which ATen computes two exponentials, 1.5 times (benchmarks/step.py --attention). They
// are replaced below autograd, so that gradients of every order are computed with them. The rest is left to ATen.

#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <ATen/ops/silu_backward_cpu_dispatch.h>
#include <ATen/ops/silu_cpu_dispatch.h>
#include <ATen/ops/tanh_cpu_dispatch.h>
#include <torch/library.h>

#include "elementwise.h"
#include "replacement.h"
#include "versions.h"

namespace orch_activations {
namespace {

using at::BFloat16;
using orch_elementwise::convert;
using orch_elementwise::exponential;
using orch_elementwise::Stored;
using std::int64_t;

constexpr int64_t kGrain = 16384; // the fewest numbers that justify another thread

// ---- Functions of single numbers -----------------------------------------------------------------------------------

struct Logistic {
  float value, complement; // 1 / (1 + exp(-x)), and 1 minus that, without cancellation
};

ORCH_INLINE Logistic logistic(float x) {
  const float e = exponential(-std::fabs(x)), large = 1 / (1 + e), small = e * large;
  return {x >= 0 ? large : small, x >= 0 ? small : large};
}

struct Silu {
  static ORCH_INLINE float value(float x) {
    return x * logistic(x).value;
  }
  static ORCH_INLINE float slope(float x) {
    const Logistic gate = logistic(x);
    return gate.value * (1 + x * gate.complement);
  }
};

// x / 2 * (1 + tanh(y)) with y = sqrt(2 / pi) * (x + 0.044715 * x**3), which is x times the logistic function of 2 * y.
struct TanhGelu {
  static constexpr float kLinear = 1.59576912f, kCubic = kLinear * 0.044715f;

  static ORCH_INLINE float value(float x) {
    return x * logistic(x * (kLinear + kCubic * x * x)).value;
  }
  static ORCH_INLINE float slope(float x) {
    const Logistic gate = logistic(x * (kLinear + kCubic * x * x));
    return gate.value * (1 + x * gate.complement * (kLinear + 3 * kCubic * x * x));
  }
};

// x times the normal distribution: formula 7.1.26 of Abramowitz and Stegun, as ATen's, wrong by at most 7.5e-8.
struct Gelu {
  static ORCH_INLINE float slope(float x) {
    const float e = exponential(x * x * -0.5f), t = 1 / (1 + 0.231641888f * std::fabs(x));
    float tail = 0.5307027145f;
    tail = tail * t - 0.7265760135f;
    tail = tail * t + 0.7107068705f;
    tail = tail * t - 0.142248368f;
    tail = tail * t + 0.127414796f;
    tail = tail * t * e;
    return (x >= 0 ? 1 - tail : tail) + x * e * 0.398942280f;
  }
};

// For BF16: numbers close to 0 by a series, which is wrong by at most 1e-5 of the result.
struct Tanh {
  static ORCH_INLINE float value(float x) {
    const float size = std::fabs(x), square = size * size, e = exponential(-2 * size);
    const float series = size * (1 + square * (-1 / 3.0f + square * (2 / 15.0f)));
    return std::copysign(size < 0.25f ? series : (1 - e) / (1 + e), x);
  }
};

// ---- Loops ---------------------------------------------------------------------------------------------------------

template <typename Loop>
void run(int64_t count, const Loop& loop) {
  at::parallel_for(0, count, kGrain, [&](int64_t first, int64_t last) { orch_versions::run(loop, first, last); });
}

template <typename Function, typename T>
void apply(const at::Tensor& input, const at::Tensor& output) {
  const auto* inputs = static_cast<const Stored<T>*>(input.data_ptr());
  auto* outputs = static_cast<Stored<T>*>(output.data_ptr());
  run(input.numel(), [=](int64_t first, int64_t last) __attribute__((always_inline)) {
    const auto* __restrict from = inputs;
    auto* __restrict to = outputs;
    for (int64_t i = first; i < last; ++i)
      to[i] = convert<T, float>(Function::value(convert<float, T>(from[i])));
  });
}

template <typename Function, typename T>
void differentiate(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& output) {
  const auto* gradients = static_cast<const Stored<T>*>(gradient.data_ptr());
  const auto* inputs = static_cast<const Stored<T>*>(input.data_ptr());
  auto* outputs = static_cast<Stored<T>*>(output.data_ptr());
  run(input.numel(), [=](int64_t first, int64_t last) __attribute__((always_inline)) {
    const auto *__restrict factors = gradients, *__restrict from = inputs;
    auto* __restrict to = outputs;
    for (int64_t i = first; i < last; ++i)
      to[i] = convert<T, float>(convert<float, T>(factors[i]) * Function::slope(convert<float, T>(from[i])));
  });
}

// ---- Operators -----------------------------------------------------------------------------------------------------

bool is_supported(const at::Tensor& tensor) {
  return (tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kFloat) && tensor.is_contiguous();
}

bool is_supported(const at::Tensor& gradient, const at::Tensor& input) {
  return is_supported(gradient) && is_supported(input) && gradient.scalar_type() == input.scalar_type() &&
      gradient.sizes() == input.sizes();
}

template <typename Function>
at::Tensor apply(const at::Tensor& input) {
  auto output = at::empty_like(input);
  input.scalar_type() == at::kFloat ? apply<Function, float>(input, output) : apply<Function, BFloat16>(input, output);
  return output;
}

template <typename Function>
at::Tensor differentiate(const at::Tensor& gradient, const at::Tensor& input) {
  auto output = at::empty_like(input);
  if (input.scalar_type() == at::kFloat)
    differentiate<Function, float>(gradient, input, output);
  else
    differentiate<Function, BFloat16>(gradient, input, output);
  return output;
}

at::Tensor gelu(const at::Tensor& input, c10::string_view approximate) {
  return approximate == "tanh" && is_supported(input) ? apply<TanhGelu>(input) : at::cpu::gelu(input, approximate);
}

at::Tensor gelu_backward(const at::Tensor& gradient, const at::Tensor& input, c10::string_view approximate) {
  const bool is_exact = approximate != "tanh";
  const bool is_slow = is_exact && input.scalar_type() != at::kFloat && !orch_versions::has_avx512();
  if (is_slow || !is_supported(gradient, input))
    return at::cpu::gelu_backward(gradient, input, approximate);
  return is_exact ? differentiate<Gelu>(gradient, input) : differentiate<TanhGelu>(gradient, input);
}

at::Tensor silu(const at::Tensor& input) {
  return is_supported(input) ? apply<Silu>(input) : at::cpu::silu(input);
}

at::Tensor silu_backward(const at::Tensor& gradient, const at::Tensor& input) {
  return is_supported(gradient, input) ? differentiate<Silu>(gradient, input) : at::cpu::silu_backward(gradient, input);
}

at::Tensor tanh(const at::Tensor& input) {
  return is_supported(input) && input.scalar_type() == at::kBFloat16 ? apply<Tanh>(input) : at::cpu::tanh(input);
}

void replace_activations(bool replace) {
  static Replacement replacement;
  if (!replace)
    replacement.stop();
  else if (orch_versions::has_avx2())
    replacement.start([](torch::Library& library) {
      library.impl("gelu", &gelu);
      library.impl("gelu_backward", &gelu_backward);
      library.impl("silu", &silu);
      library.impl("silu_backward", &silu_backward);
      library.impl("tanh", &tanh);
    });
}

} // namespace

TORCH_LIBRARY_FRAGMENT(orch, library) {
  library.def("replace_activations(bool replace) -> ()", &replace_activations);
}

} // namespace orch_activations
