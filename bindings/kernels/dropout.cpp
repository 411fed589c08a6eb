// torch.ops.orch.dropout: dropout whose mask is a function of a seed and each element's position.
//
// backward() stores only the seed and computes the mask again. On CPUs that are not Intel's, ATen's kernel draws the
// numbers one by one from a Mersenne Twister. torch calls these functions on any thread; they need no lock.

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "dropout.h"
#include "versions.h"

namespace orch_dropout {
namespace {

constexpr int64_t kGrain = 256; // the fewest blocks that justify another thread

template <typename T>
struct Task {
  const T* input;
  T* output;
  int64_t size; // elements
  uint64_t seed;
  uint32_t threshold; // elements with a smaller random word are dropped
  at::opmath_type<T> scale;
};

// Multiplies with 0 or the scale, as torch does: dropped elements keep their sign, and infinity becomes NaN. The values
// are copied from the task, because the compiler does not know that storing the output leaves them unchanged.
template <typename T>
ORCH_INLINE void apply(const Task<T>& task, const Block& words, int64_t start, int count) {
  using Wide = at::opmath_type<T>;
  const T* __restrict input = task.input + start;
  T* __restrict output = task.output + start;
  const uint32_t* __restrict word = &words[0][0];
  const Wide scale = task.scale;
  const uint32_t threshold = task.threshold;
  for (int i = 0; i < count; ++i)
    output[i] = static_cast<T>(static_cast<Wide>(input[i]) * (word[i] >= threshold ? scale : Wide(0)));
}

// Blocks from `first` up to, but not including, `last`. All register widths give the same bits.
template <typename T>
ORCH_INLINE void run(const Task<T>& task, int64_t first, int64_t last) {
  Block words;
  for (int64_t block = first; block < last; ++block) {
    threefry(task.seed, static_cast<uint64_t>(block) * kLanes, words);
    const int64_t start = block * kBlock, remaining = task.size - start;
    if (remaining >= kBlock)
      apply(task, words, start, kBlock); // a constant length: the vectorised loop needs no remainder
    else
      apply(task, words, start, static_cast<int>(remaining));
  }
}

template <typename T>
void fill(const at::Tensor& input, const at::Tensor& output, double p, int64_t seed) {
  using Wide = at::opmath_type<T>;
  Task<T> task{input.const_data_ptr<T>(), output.mutable_data_ptr<T>(), input.numel()};
  task.seed = static_cast<uint64_t>(seed);
  task.threshold = word_threshold(p);
  task.scale = Wide(1) / static_cast<Wide>(1 - p);
  at::parallel_for(0, (task.size + kBlock - 1) / kBlock, kGrain, [&](int64_t first, int64_t last) {
    orch_versions::run(
        [=](int64_t begin, int64_t end) __attribute__((always_inline)) { run(task, begin, end); }, first, last);
  });
}

// An element's position counts in the order of indices, independent of strides: those of a gradient may differ.
at::Tensor dropout_by_seed(const at::Tensor& input, double p, int64_t seed) {
  TORCH_CHECK(p >= 0 && p < 1, "orch::dropout_by_seed: p must be at least 0 and less than 1, not ", p);
  const auto dense = input.contiguous();
  auto output = at::empty_like(dense);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, input.scalar_type(), "dropout_by_seed", [&] {
    fill<scalar_t>(dense, output, p, seed);
  });
  return input.is_contiguous() ? output : at::empty_like(input).copy_(output);
}

// Each output is its input times a constant, so the gradient is the same operation.
struct DropoutBySeed : torch::autograd::Function<DropoutBySeed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, double p, int64_t seed) {
    context->saved_data["p"] = p;
    context->saved_data["seed"] = seed;
    at::AutoDispatchBelowADInplaceOrView below;
    return call_by_seed(input, p, seed);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const double p = context->saved_data.at("p").toDouble();
    const int64_t seed = context->saved_data.at("seed").toInt();
    const auto& gradient = gradients[0];
    if (!gradient.is_sparse())
      return {call_by_seed(gradient, p, seed), {}, {}};
    const auto ones = at::ones(gradient.sizes(), gradient.options().layout(at::kStrided)); // an embedding's weights
    return {gradient * call_by_seed(ones, p, seed), {}, {}};
  }
};

at::Tensor with_gradient(const at::Tensor& input, double p, int64_t seed) {
  return DropoutBySeed::apply(input, p, seed);
}

at::Tensor dropout(const at::Tensor& input, double p) {
  return call_by_seed(input, p, next_seed());
}

} // namespace

TORCH_LIBRARY(orch, library) {
  library.def("dropout_by_seed(Tensor input, float p, int seed) -> Tensor");
  library.def("dropout(Tensor input, float p) -> Tensor", &dropout);
}

TORCH_LIBRARY_IMPL(orch, CPU, library) {
  library.impl("dropout_by_seed", &dropout_by_seed);
}

TORCH_LIBRARY_IMPL(orch, AutogradCPU, library) {
  library.impl("dropout_by_seed", &with_gradient);
}

} // namespace orch_dropout
