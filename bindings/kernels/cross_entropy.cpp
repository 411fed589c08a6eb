// torch.ops.orch.cross_entropy: log(sum(exp(logits))) - logits[target] of each row, in FP32.
//
// torch computes and stores the logarithm of the softmax, and for the gradient a matrix of zeros and two more of the
// logits' size, which take more time than the layer before it if there are many classes, as in language models. Here
// the forward pass reads the logits, the second time from a cache, and the backward pass reads them and writes their
// gradient. The number of threads does not change a bit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "elementwise.h"
#include "gradients.h"
#include "versions.h"

namespace orch_cross_entropy {
namespace {

using at::BFloat16;
using orch_elementwise::convert;
using orch_elementwise::exponential;
using orch_elementwise::Stored;
using std::int64_t;

constexpr int64_t kGrain = 16384; // the fewest numbers that justify another thread
constexpr int64_t kBlock = 512; // numbers that are summed in FP32, before their sum is added in FP64

// Logits are dense [rows, classes], and rows with the target `ignored` have no loss.
struct Rows {
  int64_t count, classes, ignored;
  const int64_t* targets;
  float *maxima, *logarithms, *losses; // of the logits; of the sums of their exponentials relative to the maximum

  int64_t grain() const {
    return std::max<int64_t>(1, kGrain / classes);
  }
};

template <typename T>
void compute(const Rows& rows, const void* logits) {
  const auto* matrix = static_cast<const Stored<T>*>(logits);
  const auto loop = [=](int64_t first, int64_t last) __attribute__((always_inline)) {
    for (int64_t i = first; i < last; ++i) {
      const auto* __restrict row = matrix + i * rows.classes;
      float maximum = -std::numeric_limits<float>::infinity();
      double sum = 0;
#pragma omp simd reduction(max : maximum)
      for (int64_t j = 0; j < rows.classes; ++j)
        maximum = std::max(maximum, convert<float, T>(row[j]));
      for (int64_t block = 0; block < rows.classes; block += kBlock) {
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t j = block; j < std::min(block + kBlock, rows.classes); ++j)
          part += exponential(convert<float, T>(row[j]) - maximum);
        sum += part;
      }
      const int64_t target = rows.targets[i];
      rows.maxima[i] = maximum;
      rows.logarithms[i] = static_cast<float>(std::log(sum));
      rows.losses[i] = target == rows.ignored
          ? 0.0f
          : rows.logarithms[i] - (convert<float, T>(row[target]) - maximum);
    }
  };
  at::parallel_for(0, rows.count, rows.grain(), [&](int64_t first, int64_t last) {
    orch_versions::run(loop, first, last);
  });
}

template <typename T>
void differentiate(const Rows& rows, const void* logits, const float* gradients, void* result) {
  const auto* matrix = static_cast<const Stored<T>*>(logits);
  auto* results = static_cast<Stored<T>*>(result);
  const auto loop = [=](int64_t first, int64_t last) __attribute__((always_inline)) {
    for (int64_t i = first; i < last; ++i) {
      const auto* __restrict row = matrix + i * rows.classes;
      auto* __restrict to = results + i * rows.classes;
      const int64_t target = rows.targets[i], classes = rows.classes;
      if (target == rows.ignored) {
        std::fill_n(to, classes, Stored<T>(0));
        continue;
      }
      const float maximum = rows.maxima[i], logarithm = rows.logarithms[i], gradient = gradients[i];
      for (int64_t j = 0; j < classes; ++j)
        to[j] = convert<T, float>(exponential(convert<float, T>(row[j]) - maximum - logarithm) * gradient);
      const float loss = logarithm - (convert<float, T>(row[target]) - maximum);
      to[target] = convert<T, float>((exponential(-loss) - 1) * gradient);
    }
  };
  at::parallel_for(0, rows.count, rows.grain(), [&](int64_t first, int64_t last) {
    orch_versions::run(loop, first, last);
  });
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets,
      int64_t ignored) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto dense = logits.contiguous(), classes = targets.contiguous();
    check_targets(classes, logits.size(1), ignored);
    auto stats = at::empty({2, logits.size(0)}, logits.options().dtype(at::kFloat));
    auto losses = at::empty({logits.size(0)}, stats.options());
    const Rows rows = rows_of(dense, classes, ignored, stats, losses.data_ptr<float>());
    const bool is_float = logits.scalar_type() == at::kFloat;
    (is_float ? compute<float> : compute<BFloat16>)(rows, dense.const_data_ptr());
    context->save_for_backward({logits, classes, stats});
    context->saved_data["ignored"] = ignored;
    return losses;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const int64_t ignored = context->saved_data.at("ignored").toInt();
    if (needs_operators(gradients[0]))
      return {by_operators(gradients[0], saved[0], saved[1], ignored), {}, {}};
    const auto dense = saved[0].contiguous(), gradient = gradients[0].contiguous();
    auto result = at::empty_like(dense);
    const Rows rows = rows_of(dense, saved[1], ignored, saved[2], nullptr);
    const bool is_float = dense.scalar_type() == at::kFloat;
    (is_float ? differentiate<float> : differentiate<BFloat16>)(
        rows, dense.const_data_ptr(), gradient.const_data_ptr<float>(), result.data_ptr());
    return {result, {}, {}};
  }

 private:
  static void check_targets(const at::Tensor& targets, int64_t classes, int64_t ignored) {
    for (int64_t i = 0; i < targets.numel(); ++i) {
      const int64_t target = targets.const_data_ptr<int64_t>()[i];
      TORCH_CHECK_INDEX(
          target == ignored || (target >= 0 && target < classes), "Target ", target, " is out of bounds.");
    }
  }

  static Rows rows_of(
      const at::Tensor& logits, const at::Tensor& targets, int64_t ignored, const at::Tensor& stats, float* losses) {
    const int64_t count = logits.size(0);
    auto* numbers = stats.data_ptr<float>();
    return {count, logits.size(1), ignored, targets.const_data_ptr<int64_t>(), numbers, numbers + count, losses};
  }

  // The same by operators of torch, which can be differentiated again.
  static at::Tensor by_operators(
      const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& targets, int64_t ignored) {
    const auto has_loss = (targets != ignored).unsqueeze(1), column = targets.unsqueeze(1).where(has_loss, 0);
    const auto exact = at::zeros_like(logits, at::kFloat).scatter(1, column, 1);
    const auto result = (at::softmax(logits, 1, at::kFloat) - exact) * (gradient.unsqueeze(1) * has_loss);
    return result.to(logits.scalar_type());
  }
};

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored) {
  const bool has_type = logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kBFloat16;
  TORCH_CHECK_VALUE(
      has_type && logits.dim() == 2 && logits.size(1) > 0 && targets.scalar_type() == at::kLong && targets.dim() == 1 &&
          targets.size(0) == logits.size(0),
      "orch::cross_entropy: expected FP32 or BF16 logits [rows, classes] and int64 targets [rows]");
  return CrossEntropy::apply(logits, targets, ignored);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(orch, library) {
  library.def("cross_entropy(Tensor logits, Tensor targets, int ignored) -> Tensor", &cross_entropy);
}

} // namespace orch_cross_entropy
