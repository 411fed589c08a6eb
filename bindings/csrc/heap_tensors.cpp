#include "heap_tensors.h"

#include <cstring>

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "heap.h"

namespace orch_ccl {
namespace {

void deallocate(void* memory) {
  Heap::get().deallocate(memory);
}

// Also used by storages that are resized.
struct HeapAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (void* memory = Heap::get().allocate(bytes))
      return {memory, memory, &deallocate, at::Device(at::kCPU)};
    return c10::GetCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

} // namespace

at::Tensor empty_in_heap(int64_t elements, const at::TensorOptions& options) {
  TORCH_CHECK_VALUE(
      options.device().is_cpu(), "ccl: allocate_tensor supports CPU tensors only, not ", options.device());
  static auto* allocator = new HeapAllocator;
  return at::detail::empty_generic(
      {elements}, allocator, c10::DispatchKeySet(c10::DispatchKey::CPU), options.dtype().toScalarType(), std::nullopt);
}

} // namespace orch_ccl
