#pragma once

#include <memory>

#include "group.h"
#include "torch_compat.h"
#include "work.h"

namespace orch_ccl {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;
using Handle = c10::intrusive_ptr<c10d::Work>;

// The c10d backend "ccl". Each method checks its arguments, creates an Operation and submits it; see reductions.cpp,
// movements.cpp and point_to_point.cpp. torch calls the methods on the user's threads, without the GIL.
class ProcessGroupCCL final : public Backend {
 public:
  explicit ProcessGroupCCL(GroupSpec spec);
  ~ProcessGroupCCL() override;

  const std::string getBackendName() const override { return "ccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {} // every rank counts from 0
  uint64_t getSequenceNumberForGroup() override { return group().sequence(); }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  // Tensors that the other ranks of the host access in place. DDP allocates its buckets here.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long elements, at::TensorOptions options) override;

  Handle allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Handle allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Handle allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Handle reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Handle reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  Handle _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  Handle reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;

  Handle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Handle allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Handle _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  Handle allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Handle allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Handle gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Handle scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  Handle alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override;
  Handle alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Handle barrier(const c10d::BarrierOptions& options) override;

  Handle send(Tensors& tensors, int peer, int tag) override;
  Handle recv(Tensors& tensors, int peer, int tag) override;
  Handle recvAnysource(Tensors& tensors, int tag) override;

 private:
  Group& group() const;
  Handle submit(Operation operation);
  Handle reduce_to_each(at::Tensor& output, Tensors& inputs, const c10d::ReduceScatterOptions& options);
  Handle gather_all(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options);
  Handle receive(Tensors& tensors, int source, int tag, c10d::OpType type);

  std::shared_ptr<Group> group_;
};

} // namespace orch_ccl
