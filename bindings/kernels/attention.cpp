// torch.ops.orch.attention: scaled dot-product attention for training, with dropout inside.
//
// Scores are computed with keys as rows and queries as columns. Then neither the forward nor the backward pass has to
// transpose them between its matrix products, the softmax reduces vertically, and one random word decides about two
// keys, which are also the pairs that BF16 products expect. The dropout mask is a function of a seed and each score's
// position. backward() stores the seed, and the maximum and the sum of each row, and computes the probabilities again.
// The work is divided by heads, so that the number of threads does not change a bit of the results.

#include <cmath>
#include <tuple>
#include <type_traits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "attention_backward.h"
#include "attention_forward.h"
#include "dropout.h"

namespace orch_attention {
namespace {

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
  const int64_t seed = p > 0 ? orch_dropout::next_seed() : 0;
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
      default_scale(query, scale), causal, p > 0 ? orch_dropout::next_seed() : 0};
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
