#include "tensors.h"

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>

#include "comparison.h"
#include "types.h"

namespace orch_ccl {
namespace {

// Returns false if each stride exceeds the extent of the dimensions with shorter strides.
bool may_overlap_itself(const at::Tensor& tensor) {
  if (tensor.is_contiguous() || tensor.numel() < 2)
    return false;
  std::vector<std::pair<int64_t, int64_t>> dimensions; // stride, size
  for (int64_t i = 0; i < tensor.dim(); ++i)
    if (tensor.size(i) > 1)
      dimensions.emplace_back(tensor.stride(i), tensor.size(i));
  std::sort(dimensions.begin(), dimensions.end());
  int64_t extent = 0;
  for (const auto& [stride, size] : dimensions) {
    if (stride <= extent)
      return true;
    extent += stride * (size - 1);
  }
  return false;
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  const auto *begin_a = static_cast<const char*>(a.data_ptr()), *begin_b = static_cast<const char*>(b.data_ptr());
  return begin_a < begin_b + bytes_of(b) && begin_b < begin_a + bytes_of(a);
}

} // namespace

void check_tensor(const char* collective, const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided)
    not_implemented(
        std::string(collective) +
        " of a sparse tensor. Sparse gradients come from nn.Embedding(sparse=True) or EmbeddingBag: use "
        "sparse=False, or a gloo group (new_group(backend='gloo')), or tensor.to_dense()");
  TORCH_CHECK_TYPE(tensor.device().is_cpu(), "ccl: ", collective, " needs CPU tensors, not ", tensor.device());
}

void check_tensors(const char* collective, const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors)
    check_tensor(collective, tensor);
}

void check_output(const char* collective, const at::Tensor& tensor) {
  check_tensor(collective, tensor);
  TORCH_CHECK_VALUE(
      !may_overlap_itself(tensor), "ccl: ", collective, " cannot write to a tensor of shape ", tensor.sizes(),
      " and strides ", tensor.strides(), ": several of its elements share memory. Use tensor.contiguous(), for example "
      "after expand()");
}

void check_outputs(const char* collective, const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors)
    check_output(collective, tensor);
}

void check_single(const char* collective, size_t given) {
  TORCH_CHECK_VALUE(given == 1, "ccl: ", collective, " takes one tensor (or list) per rank, not ", given);
}

void check_rank(const char* collective, int64_t rank, int size) {
  TORCH_CHECK_VALUE(
      rank >= 0 && rank < size, "ccl: ", collective, ": there is no rank ", rank, " in this group of ", size);
}

void check_same_type(const char* collective, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_TYPE(
      a.scalar_type() == b.scalar_type(),
      "ccl: ", collective, ": input is ", a.scalar_type(), " but output is ", b.scalar_type());
}

// torch conjugates and negates lazily, so the memory may not hold the values.
bool is_dense_in_memory(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor as_contiguous(const at::Tensor& tensor) {
  return is_dense_in_memory(tensor) ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

at::Tensor as_separate_input(const at::Tensor& input, const at::Tensor& output, const void* allowed) {
  auto data = as_contiguous(input);
  return share_memory(data, output) && data.data_ptr() != allowed ? data.clone() : data;
}

void copy_back(const at::Tensor& from, at::Tensor& to) {
  if (!from.is_same(to))
    to.copy_(from);
}

size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel()) * tensor.element_size();
}

at::Tensor flat_like(const at::Tensor& example, int64_t elements) {
  return at::empty({elements}, example.options().requires_grad(false).memory_format(c10::nullopt));
}

at::Tensor empty_buffer_for(const std::vector<at::Tensor>& tensors) {
  int64_t elements = 0;
  for (const auto& tensor : tensors)
    elements += tensor.numel();
  return flat_like(tensors.at(0), elements);
}

std::string describe(const at::Tensor& tensor) {
  if (!call_checks_enabled())
    return "";
  return std::string(c10::toString(tensor.scalar_type())) + "[" + std::to_string(tensor.numel()) + "]";
}

std::string describe(const std::vector<at::Tensor>& tensors) {
  std::string out;
  for (const auto& tensor : tensors)
    out += (out.empty() ? "" : " ") + describe(tensor);
  return out;
}

at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
  auto flat = empty_buffer_for(tensors);
  auto* to = static_cast<char*>(flat.data_ptr());
  for (const auto& tensor : tensors) {
    const auto from = as_contiguous(tensor);
    if (bytes_of(from) > 0)
      std::memcpy(to, from.data_ptr(), bytes_of(from));
    to += bytes_of(from);
  }
  return flat;
}

void unflatten(const at::Tensor& flat, std::vector<at::Tensor>& tensors) {
  const auto* from = static_cast<const char*>(flat.data_ptr());
  for (auto& tensor : tensors) {
    const size_t bytes = bytes_of(tensor);
    if (bytes > 0 && is_dense_in_memory(tensor))
      std::memcpy(tensor.data_ptr(), from, bytes);
    else if (bytes > 0)
      tensor.copy_(at::from_blob(const_cast<char*>(from), tensor.sizes(), tensor.options().requires_grad(false)));
    from += bytes;
  }
}

} // namespace orch_ccl
