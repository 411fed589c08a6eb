// aten::mm and aten::addmm of FP32 matrices with oneDNN's kernels instead of MKL's.
//
// On CPUs of AMD, MKL does not use AVX-512, and its kernels for AVX2 are not the fastest. On Zen 5, products of layers
// take 0.42 to 0.53 of the time with oneDNN, and 0.83 to 1.1 with AVX2 alone (benchmarks/step.py). They are replaced
// below autograd, so that gradients of every order are computed with them.

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <torch/library.h>

#include "replacement.h"

namespace orch_products {
namespace {

constexpr double kSmallest = 1 << 21; // multiplications; oneDNN's overhead outweighs its gain in fewer of them
constexpr int64_t kNarrowest = 32; // rows and columns; vectors and narrow matrices can take twice as long with oneDNN

bool is_mkl_slow() {
#ifdef __x86_64__
  return __builtin_cpu_is("amd") && at::hasMKL() && at::get_cpu_capability() != "DEFAULT";
#else
  return false;
#endif
}

using Scalars = c10::List<c10::optional<at::Scalar>>;
using Linear = at::Tensor(
    const at::Tensor&, const at::Tensor&, const c10::optional<at::Tensor>&, c10::string_view, Scalars,
    c10::optional<c10::string_view>);

c10::optional<c10::TypedOperatorHandle<Linear>> find_linear() {
  const auto handle = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!handle)
    return c10::nullopt;
  return handle->typed<Linear>();
}

bool is_dense(const at::Tensor& matrix) {
  return (matrix.stride(1) == 1 && matrix.stride(0) >= matrix.size(1)) ||
      (matrix.stride(0) == 1 && matrix.stride(1) >= matrix.size(0));
}

bool is_faster_with_onednn(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != at::kFloat || b.scalar_type() != at::kFloat || a.dim() != 2 || b.dim() != 2 ||
      a.size(1) != b.size(0) || !at::globalContext().userEnabledMkldnn())
    return false;
  const int64_t rows = a.size(0), inner = a.size(1), columns = b.size(1);
  return rows >= kNarrowest && columns >= kNarrowest && inner > 1 &&
      static_cast<double>(rows) * inner * columns >= kSmallest;
}

// a x b + bias
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const c10::optional<at::Tensor>& bias) {
  static const auto linear = find_linear().value();
  const auto weight = (is_dense(b) ? b : b.contiguous()).t();
  const c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  return linear.redispatch(cpu, a, weight, bias, "none", Scalars(), c10::nullopt);
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  return is_faster_with_onednn(a, b) ? multiply(a, b, c10::nullopt) : at::cpu::mm(a, b);
}

at::Tensor addmm(
    const at::Tensor& added, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
    const at::Scalar& alpha) {
  const bool is_bias = added.scalar_type() == at::kFloat && added.dim() == 1 && added.is_contiguous() &&
      is_faster_with_onednn(a, b) && added.size(0) == b.size(1) && beta.equal(1) && alpha.equal(1);
  return is_bias ? multiply(a, b, added) : at::cpu::addmm(added, a, b, beta, alpha);
}

// Where MKL is not slow, only tests replace the products.
void replace_products(bool replace, bool on_any_cpu) {
  static Replacement replacement;
  if (!replace)
    replacement.stop();
  else if ((on_any_cpu || is_mkl_slow()) && find_linear())
    replacement.start([](torch::Library& library) {
      library.impl("mm", &mm);
      library.impl("addmm", &addmm);
    });
}

} // namespace

TORCH_LIBRARY_FRAGMENT(orch, library) {
  library.def("replace_products(bool replace, bool on_any_cpu=False) -> ()", &replace_products);
}

} // namespace orch_products
