#include "heap_tensors.h"

#include <cstring>

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "heap.h"

namespace orch_ccl {
namespace {

void give_back(void* memory) {
  Heap::own().give_back(memory);
}

// A storage that is resized asks it again.
struct HeapAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (void* memory = Heap::own().take(bytes))
      return {memory, memory, &give_back, at::Device(at::kCPU)};
    return c10::GetCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

} // namespace

at::Tensor empty_in_heap(int64_t elements, const at::TensorOptions& options) {
  TORCH_CHECK_VALUE(
      options.device().is_cpu(), "ccl: allocate_tensor: tensors of the CPU only, not of ", options.device());
  static auto* allocator = new HeapAllocator;
  return at::detail::empty_generic(
      {elements}, allocator, c10::DispatchKeySet(c10::DispatchKey::CPU), options.dtype().toScalarType(), std::nullopt);
}

} // namespace orch_ccl
