// Collectives that move data without changing it (broadcast, gather, allgather, scatter, alltoall), and barrier.

#include <algorithm>
#include <numeric>

#include "process_group.h"
#include "tensors.h"
#include "types.h"
#include "wire.h"

namespace orch_ccl {
namespace {

using c10d::OpType;
using Sizes = std::vector<size_t>;

template <typename Options>
void take_options(Operation& operation, const Options& options) {
  operation.timeout = options.timeout;
  operation.async = is_async(options);
}

// Converts splits along the first dimension to bytes per rank. No splits means equal parts.
Sizes bytes_per_rank(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  if (splits.empty()) {
    TORCH_CHECK_VALUE(
        tensor.dim() > 0 && tensor.size(0) % size == 0,
        "ccl: all_to_all_single: dimension 0 of shape ", tensor.sizes(), " does not divide into ", size,
        " equal parts");
    return Sizes(size, bytes_of(tensor) / size);
  }
  TORCH_CHECK_VALUE(
      splits.size() == static_cast<size_t>(size), "ccl: all_to_all_single needs one split per rank (", size, ")");
  TORCH_CHECK_VALUE(
      std::all_of(splits.begin(), splits.end(), [](int64_t rows_of_rank) { return rows_of_rank >= 0; }),
      "ccl: all_to_all_single: a split is negative: ", splits);
  const auto rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  TORCH_CHECK_VALUE(
      rows == tensor.size(0), "ccl: all_to_all_single: splits add up to ", rows, ", dimension 0 is ", tensor.size(0));
  const size_t row_bytes = rows == 0 ? 0 : bytes_of(tensor) / rows;
  Sizes out;
  for (int64_t rows_of_rank : splits)
    out.push_back(static_cast<size_t>(rows_of_rank) * row_bytes);
  return out;
}

Sizes bytes_of_each(const Tensors& tensors) {
  Sizes out;
  for (const auto& tensor : tensors)
    out.push_back(bytes_of(tensor));
  return out;
}

void check_list(const char* name, const Tensors& list, const at::Tensor& expected, int size) {
  TORCH_CHECK_VALUE(
      list.size() == static_cast<size_t>(size),
      "ccl: ", name, " needs one tensor per rank (", size, "), not ", list.size());
  for (const auto& tensor : list) {
    check_tensor(name, tensor);
    check_same_type(name, expected, tensor);
  }
}

void check_equal_sizes(const char* name, const Tensors& list, const at::Tensor& expected, int size) {
  check_list(name, list, expected, size);
  for (const auto& tensor : list) {
    if (tensor.numel() != expected.numel())
      not_implemented(
          std::string(name) + " with tensors of different sizes: use all_to_all, or pad them to the same size");
  }
}

} // namespace

Handle ProcessGroupCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_single("broadcast", tensors.size());
  auto tensor = tensors[0];
  check_output("broadcast", tensor); // on all ranks, so that all of them refuse the call
  auto data = as_contiguous(tensor);
  const int root = static_cast<int>(options.rootRank);
  check_rank("broadcast", root, getSize());
  Operation operation{"broadcast", OpType::BROADCAST};
  operation.call = describe(tensor) + " from rank " + std::to_string(root);
  operation.start = [=](const Group& group, Events& events) {
    wire::broadcast(group, data.data_ptr(), bytes_of(data), root, events);
  };
  operation.finish = [=]() mutable { copy_back(data, tensor); };
  operation.outputs = tensors;
  take_options(operation, options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  check_single("allgather", inputs.size());
  check_single("allgather", outputs.size());
  return gather_all(outputs, inputs, options);
}

// outputs[rank][i] receives inputs[i] of that rank.
Handle ProcessGroupCCL::allgather_coalesced(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(
      outputs.size() == static_cast<size_t>(getSize()),
      "ccl: all_gather_coalesced needs one output list per rank (", getSize(), "), not ", outputs.size());
  TensorLists of_inputs(inputs.size());
  for (const auto& of_rank : outputs) {
    TORCH_CHECK_VALUE(
        of_rank.size() == inputs.size(), "ccl: all_gather_coalesced needs as many outputs per rank as inputs");
    for (size_t i = 0; i < inputs.size(); ++i)
      of_inputs[i].push_back(of_rank[i]);
  }
  return gather_all(of_inputs, inputs, options);
}

// outputs[i] receives inputs[i] of all ranks, whose sizes may differ.
Handle ProcessGroupCCL::gather_all(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  struct Part {
    at::Tensor input, flat;
    Tensors outputs;
    Sizes bytes;
    bool even;
  };
  auto parts = std::make_shared<std::vector<Part>>();
  Operation operation{"allgather", OpType::ALLGATHER};
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_tensor("allgather", inputs[i]);
    check_list("allgather", outputs[i], inputs[i], getSize());
    check_outputs("allgather", outputs[i]);
    TORCH_CHECK_VALUE(
        outputs[i][getRank()].numel() == inputs[i].numel(),
        "ccl: allgather: this rank's input has ", inputs[i].numel(), " elements, its output ",
        outputs[i][getRank()].numel());
    const auto bytes = bytes_of_each(outputs[i]);
    const bool even = std::all_of(bytes.begin(), bytes.end(), [&](size_t part) { return part == bytes[0]; });
    parts->push_back({as_contiguous(inputs[i]), empty_buffer_for(outputs[i]), outputs[i], bytes, even});
    operation.outputs.insert(operation.outputs.end(), outputs[i].begin(), outputs[i].end());
    operation.call += describe(outputs[i]);
  }
  operation.start = [parts](const Group& group, Events& events) {
    for (auto& part : *parts)
      if (part.even)
        wire::allgather(group, part.input.data_ptr(), part.flat.data_ptr(), part.bytes[0], events);
      else
        wire::allgatherv(group, part.input.data_ptr(), part.flat.data_ptr(), part.bytes, events);
  };
  operation.finish = [parts] {
    for (auto& part : *parts)
      unflatten(part.flat, part.outputs);
  };
  take_options(operation, options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

Handle ProcessGroupCCL::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ccl: all_gather_into_tensor needs as many outputs as inputs");
  struct Part {
    at::Tensor input, packed_output, output;
  };
  auto parts = std::make_shared<std::vector<Part>>();
  Operation operation{"allgather", OpType::_ALLGATHER_BASE};
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_tensor("all_gather_into_tensor", inputs[i]);
    check_output("all_gather_into_tensor", outputs[i]);
    check_same_type("all_gather_into_tensor", inputs[i], outputs[i]);
    TORCH_CHECK_VALUE(
        outputs[i].numel() == inputs[i].numel() * getSize(),
        "ccl: all_gather_into_tensor: the output must have as many elements as the inputs of all ranks together");
    const auto packed_output = as_contiguous(outputs[i]);
    const auto* own_part = static_cast<const char*>(packed_output.data_ptr()) + getRank() * bytes_of(inputs[i]);
    parts->push_back({as_separate_input(inputs[i], packed_output, own_part), packed_output, outputs[i]});
    operation.call += describe(inputs[i]);
  }
  operation.start = [parts](const Group& group, Events& events) {
    for (auto& part : *parts)
      wire::allgather(group, part.input.data_ptr(), part.packed_output.data_ptr(), bytes_of(part.input), events);
  };
  operation.finish = [parts] {
    for (auto& part : *parts)
      copy_back(part.packed_output, part.output);
  };
  operation.outputs = outputs;
  take_options(operation, options);
  return submit(std::move(operation));
}

// oneCCL has no gather; an alltoall in which all ranks send only to the root does the same.
Handle ProcessGroupCCL::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  check_single("gather", inputs.size());
  check_tensor("gather", inputs[0]);
  const int root = static_cast<int>(options.rootRank);
  check_rank("gather", root, getSize());
  const bool is_root = getRank() == root;
  Tensors targets;
  at::Tensor flat = flat_like(inputs[0], is_root ? inputs[0].numel() * getSize() : 0);
  if (is_root) {
    check_single("gather", outputs.size());
    check_equal_sizes("gather", outputs[0], inputs[0], getSize());
    check_outputs("gather", outputs[0]);
    targets = outputs[0];
  }
  const auto input = as_contiguous(inputs[0]);
  Sizes in(getSize(), 0), out(getSize(), is_root ? bytes_of(input) : 0);
  in[root] = bytes_of(input);
  Operation operation{"gather", OpType::GATHER};
  operation.call = describe(input) + " to rank " + std::to_string(root);
  operation.start = [=](const Group& group, Events& events) {
    wire::alltoallv(group, input.data_ptr(), in, flat.data_ptr(), out, events);
  };
  operation.finish = [=]() mutable {
    if (is_root)
      unflatten(flat, targets);
  };
  operation.outputs = targets;
  take_options(operation, options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  check_single("scatter", outputs.size());
  check_output("scatter", outputs[0]);
  const int root = static_cast<int>(options.rootRank);
  check_rank("scatter", root, getSize());
  const bool is_root = getRank() == root;
  auto output = outputs[0];
  at::Tensor flat = flat_like(output, 0);
  if (is_root) {
    check_single("scatter", inputs.size());
    check_equal_sizes("scatter", inputs[0], output, getSize());
    flat = flatten(inputs[0]);
  }
  auto target = as_contiguous(output);
  Sizes in(getSize(), is_root ? bytes_of(target) : 0), out(getSize(), 0);
  out[root] = bytes_of(target);
  Operation operation{"scatter", OpType::SCATTER};
  operation.call = describe(output) + " from rank " + std::to_string(root);
  operation.start = [=](const Group& group, Events& events) {
    wire::alltoallv(group, flat.data_ptr(), in, target.data_ptr(), out, events);
  };
  operation.finish = [=]() mutable { copy_back(target, output); };
  operation.outputs = outputs;
  take_options(operation, options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  check_tensor("all_to_all_single", input);
  check_output("all_to_all_single", output);
  check_same_type("all_to_all_single", input, output);
  const auto in = bytes_per_rank(input, input_splits, getSize());
  const auto out = bytes_per_rank(output, output_splits, getSize());
  auto to = as_contiguous(output);
  auto from = as_separate_input(input, to);
  Operation operation{"alltoall", OpType::ALLTOALL_BASE};
  operation.sent = in;
  operation.received = out;
  operation.start = [=](const Group& group, Events& events) {
    wire::alltoallv(group, from.data_ptr(), in, to.data_ptr(), out, events);
  };
  operation.finish = [to, output]() mutable { copy_back(to, output); };
  operation.outputs = {output};
  take_options(operation, options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const auto size = static_cast<size_t>(getSize());
  TORCH_CHECK_VALUE(
      inputs.size() == size && outputs.size() == size, "ccl: all_to_all needs one input and one output per rank");
  check_tensors("all_to_all", inputs);
  check_outputs("all_to_all", outputs);
  const auto from = flatten(inputs);
  const auto to = empty_buffer_for(outputs);
  Operation operation{"alltoall", OpType::ALLTOALL};
  operation.sent = bytes_of_each(inputs);
  operation.received = bytes_of_each(outputs);
  operation.start = [=, in = operation.sent, out = operation.received](const Group& group, Events& events) {
    wire::alltoallv(group, from.data_ptr(), in, to.data_ptr(), out, events);
  };
  operation.finish = [to, outputs]() mutable { unflatten(to, outputs); };
  operation.outputs = outputs;
  take_options(operation, options);
  return submit(std::move(operation));
}

// oneCCL's barrier blocks the calling thread. A reduction of one number is an operation like any other: it can be
// waited for, time out, and overtake operations of other groups.
Handle ProcessGroupCCL::barrier(const c10d::BarrierOptions& options) {
  const auto number = std::make_shared<int32_t>(0);
  const auto reduction = reduction_for("barrier", c10d::ReduceOp::MAX, at::kInt);
  Operation operation{"barrier", OpType::BARRIER};
  operation.start = [number, reduction](const Group& group, Events& events) {
    wire::allreduce(group, number.get(), number.get(), 1, reduction, events);
  };
  take_options(operation, options);
  return submit(std::move(operation));
}

} // namespace orch_ccl
