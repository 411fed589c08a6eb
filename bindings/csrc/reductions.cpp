// The variants of allreduce, reduce and reduce_scatter.

#include <algorithm>
#include <map>

#include "process_group.h"
#include "tensors.h"
#include "types.h"
#include "wire.h"

namespace orch_ccl {
namespace {

using c10d::OpType;

// Returns a buffer for the data of all ranks if oneCCL lacks the reduction, otherwise an undefined tensor.
at::Tensor make_gather_buffer(const Reduction& reduction, const at::Tensor& data, int size) {
  return reduction.fold ? flat_like(data, data.numel() * size) : at::Tensor();
}

void allreduce_or_gather(
    Events& events, const Group& group, at::Tensor& data, at::Tensor& gathered, const Reduction& reduction) {
  if (reduction.fold)
    wire::allgather(group, data.data_ptr(), gathered.data_ptr(), bytes_of(data), events);
  else
    wire::allreduce(group, data.data_ptr(), data.data_ptr(), reduction.count(data), reduction, events);
}

// Reduces the pieces at `offset` of the ranks' blocks in `gathered` to `out`.
void fold(const Reduction& reduction, const at::Tensor& gathered, int size, size_t offset, at::Tensor& out) {
  if (!reduction.fold || gathered.numel() == 0)
    return;
  const size_t block = bytes_of(gathered) / size;
  const auto* in = static_cast<const uint8_t*>(gathered.data_ptr()) + offset;
  reduction.fold(in, block, size, static_cast<uint8_t*>(out.data_ptr()), bytes_of(out));
}

// A piece of a reduce_scatter that is too long for one call: `count` elements, beginning with `first`, of the part of
// the input that belongs to rank `root`.
struct Piece {
  int root;
  size_t first, count;
};

std::vector<Piece> pieces_of(size_t count, int size) {
  std::vector<Piece> pieces;
  for (int root = 0; root < size; ++root)
    for (size_t first = 0; first < count; first += wire::max_elements_per_call())
      pieces.push_back({root, first, std::min(count - first, wire::max_elements_per_call())});
  return pieces;
}

// The results of other ranks' pieces are discarded in `scratch`, which is large enough for one piece, so the pieces are
// reduced one after the other.
void reduce_piece(
    Events& events, const Group& group, const at::Tensor& input, at::Tensor& output, at::Tensor& scratch,
    const Reduction& reduction, const Piece& piece) {
  const size_t first = wire::bytes_of(piece.first, reduction);
  const auto* from = static_cast<const char*>(input.data_ptr()) + piece.root * bytes_of(output) + first;
  auto* target = piece.root == group.rank() ? static_cast<char*>(output.data_ptr()) + first : scratch.data_ptr();
  wire::reduce(group, from, target, piece.count, reduction, piece.root, events);
}

std::string describe(const Reduction& reduction, const at::Tensor& data) {
  return orch_ccl::describe(data) + " by " + reduction.name;
}

// Converts what the ranks have reduced to the result.
void convert_to_result(const Reduction& reduction, at::Tensor& data, int size) {
  to_numbers(reduction, data);
  if (reduction.average && size > 1)
    divide_in_place(data, size);
}

} // namespace

Handle ProcessGroupCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_single("allreduce", tensors.size());
  auto tensor = tensors[0];
  check_output("allreduce", tensor);
  const auto reduction = reduction_for("allreduce", options.reduceOp, tensor.scalar_type());
  auto data = to_integers_of_same_order(reduction, as_contiguous(tensor));
  auto gathered = make_gather_buffer(reduction, data, getSize());
  Operation operation{"allreduce", OpType::ALLREDUCE};
  operation.call = describe(reduction, data);
  operation.start = [=](const Group& group, Events& events) mutable {
    allreduce_or_gather(events, group, data, gathered, reduction);
  };
  operation.finish = [=, size = getSize()]() mutable {
    fold(reduction, gathered, size, 0, data);
    convert_to_result(reduction, data, size);
    copy_back(data, tensor);
  };
  operation.outputs = tensors;
  operation.timeout = options.timeout;
  operation.async = is_async(options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions&) {
  check_tensors("allreduce", tensors);
  not_implemented("allreduce_sparse: use a gloo group (new_group(backend='gloo')), or tensor.to_dense()");
}

// Tensors of the same dtype are sent as one buffer: many small messages cost more than copying.
Handle ProcessGroupCCL::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  check_outputs("allreduce_coalesced", tensors);
  struct Bundle {
    Reduction reduction;
    Tensors members;
    at::Tensor flat, gathered;
  };
  std::map<at::ScalarType, Bundle> bundles; // sorted, so that the order is the same on all ranks
  for (const auto& tensor : tensors)
    bundles[tensor.scalar_type()].members.push_back(tensor);
  auto shared = std::make_shared<std::vector<Bundle>>();
  for (auto& [type, bundle] : bundles) {
    bundle.reduction = reduction_for("allreduce_coalesced", options.reduceOp, type);
    bundle.flat = to_integers_of_same_order(bundle.reduction, flatten(bundle.members));
    bundle.gathered = make_gather_buffer(bundle.reduction, bundle.flat, getSize());
    shared->push_back(bundle);
  }
  Operation operation{"allreduce_coalesced", OpType::ALLREDUCE_COALESCED};
  for (const auto& bundle : *shared)
    operation.call += describe(bundle.reduction, bundle.flat) + " ";
  operation.start = [shared](const Group& group, Events& events) {
    for (auto& bundle : *shared)
      allreduce_or_gather(events, group, bundle.flat, bundle.gathered, bundle.reduction);
  };
  operation.finish = [shared, size = getSize()] {
    for (auto& bundle : *shared) {
      fold(bundle.reduction, bundle.gathered, size, 0, bundle.flat);
      convert_to_result(bundle.reduction, bundle.flat, size);
      unflatten(bundle.flat, bundle.members);
    }
  };
  operation.outputs = tensors;
  operation.timeout = options.timeout;
  operation.async = is_async(options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_single("reduce", tensors.size());
  auto tensor = tensors[0];
  check_output("reduce", tensor); // on all ranks, so that all of them refuse the call
  const auto reduction = reduction_for("reduce", options.reduceOp, tensor.scalar_type());
  const int root = static_cast<int>(options.rootRank);
  check_rank("reduce", root, getSize());
  const bool is_root = getRank() == root;
  auto data = to_integers_of_same_order(reduction, as_contiguous(tensor));
  // Only the root's tensor may change; the other ranks pass scratch memory to oneCCL.
  auto out = is_root ? data : at::empty_like(data);
  auto gathered = make_gather_buffer(reduction, data, getSize());
  Operation operation{"reduce", OpType::REDUCE};
  operation.call = describe(reduction, data) + " to rank " + std::to_string(root);
  operation.start = [=](const Group& group, Events& events) mutable {
    if (reduction.fold)
      return allreduce_or_gather(events, group, data, gathered, reduction);
    wire::reduce(group, data.data_ptr(), out.data_ptr(), reduction.count(data), reduction, root, events);
  };
  operation.finish = [=, size = getSize()]() mutable {
    if (!is_root)
      return;
    fold(reduction, gathered, size, 0, data);
    convert_to_result(reduction, data, size);
    copy_back(data, tensor);
  };
  operation.outputs = tensors;
  operation.timeout = options.timeout;
  operation.async = is_async(options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  check_single("reduce_scatter", outputs.size());
  check_single("reduce_scatter", inputs.size());
  check_output("reduce_scatter", outputs[0]);
  check_tensors("reduce_scatter", inputs[0]);
  TORCH_CHECK_VALUE(
      inputs[0].size() == static_cast<size_t>(getSize()),
      "ccl: reduce_scatter needs one input per rank (", getSize(), "), not ", inputs[0].size());
  for (const auto& input : inputs[0])
    check_same_type("reduce_scatter", input, outputs[0]);
  TORCH_CHECK_VALUE(
      inputs[0][getRank()].numel() == outputs[0].numel(),
      "ccl: reduce_scatter: this rank's input has ", inputs[0][getRank()].numel(), " elements, its output ",
      outputs[0].numel());
  for (const auto& input : inputs[0])
    if (input.numel() != outputs[0].numel())
      return reduce_to_each(outputs[0], inputs[0], options);
  auto flat = flatten(inputs[0]);
  return _reduce_scatter_base(outputs[0], flat, options);
}

// For inputs of different sizes: reduces input i to rank i.
Handle ProcessGroupCCL::reduce_to_each(
    at::Tensor& output, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const auto reduction = reduction_for("reduce_scatter", options.reduceOp, output.scalar_type());
  struct Part {
    at::Tensor input, out, gathered;
  };
  auto parts = std::make_shared<std::vector<Part>>();
  for (const auto& input : inputs) {
    const auto from = to_integers_of_same_order(reduction, as_contiguous(input));
    parts->push_back({from, at::empty_like(from), make_gather_buffer(reduction, from, getSize())});
  }
  Operation operation{"reduce_scatter", OpType::REDUCE_SCATTER};
  operation.call = describe(inputs);
  operation.start = [parts, reduction](const Group& group, Events& events) {
    for (int rank = 0; rank < group.size(); ++rank) {
      auto& [input, out, gathered] = (*parts)[rank];
      if (reduction.fold)
        wire::allgather(group, input.data_ptr(), gathered.data_ptr(), bytes_of(input), events);
      else
        wire::reduce(group, input.data_ptr(), out.data_ptr(), reduction.count(input), reduction, rank, events);
    }
  };
  operation.finish = [=, rank = getRank(), size = getSize()]() mutable {
    auto& own_part = (*parts)[rank];
    fold(reduction, own_part.gathered, size, 0, own_part.out);
    convert_to_result(reduction, own_part.out, size);
    output.copy_(own_part.out.view(output.sizes()));
  };
  operation.outputs = {output};
  operation.timeout = options.timeout;
  operation.async = options.asyncOp;
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

Handle ProcessGroupCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ccl: reduce_scatter_tensor needs as many outputs as inputs");
  struct Part {
    Reduction reduction;
    at::Tensor input, gathered, packed_output, output;
    at::Tensor scratch; // for one piece, if the input is too long for one call
  };
  auto parts = std::make_shared<std::vector<Part>>();
  std::vector<std::pair<size_t, Piece>> remaining_pieces; // (index of the part, piece)
  Operation operation{"reduce_scatter", OpType::_REDUCE_SCATTER_BASE};
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_tensor("reduce_scatter_tensor", inputs[i]);
    check_output("reduce_scatter_tensor", outputs[i]);
    check_same_type("reduce_scatter_tensor", inputs[i], outputs[i]);
    TORCH_CHECK_VALUE(
        inputs[i].numel() == outputs[i].numel() * getSize(),
        "ccl: reduce_scatter_tensor: the input must have as many elements as the outputs of all ranks together");
    const auto reduction = reduction_for("reduce_scatter_tensor", options.reduceOp, inputs[i].scalar_type());
    const auto packed_output = as_contiguous(outputs[i]);
    const auto input = to_integers_of_same_order(reduction, as_separate_input(inputs[i], packed_output));
    parts->push_back(
        {reduction, input, make_gather_buffer(reduction, input, getSize()), packed_output, outputs[i]});
    if (!reduction.fold && reduction.count(outputs[i]) > wire::max_elements_per_call()) {
      parts->back().scratch = flat_like(input, wire::max_elements_per_call());
      for (const auto& piece : pieces_of(reduction.count(outputs[i]), getSize()))
        remaining_pieces.emplace_back(i, piece);
    }
    operation.call += describe(reduction, input) + " ";
  }
  operation.start = [parts](const Group& group, Events& events) {
    for (auto& part : *parts) {
      if (part.reduction.fold)
        allreduce_or_gather(events, group, part.input, part.gathered, part.reduction);
      else if (!part.scratch.defined())
        wire::reduce_scatter(
            group, part.input.data_ptr(), part.packed_output.data_ptr(), part.reduction.count(part.output),
            part.reduction, events);
    }
  };
  if (!remaining_pieces.empty())
    operation.next = [parts, remaining_pieces, done = size_t{0}](Group& group, Events& events) mutable {
      if (done == remaining_pieces.size())
        return true;
      const auto& [part_index, piece] = remaining_pieces[done++];
      auto& part = (*parts)[part_index];
      reduce_piece(events, group, part.input, part.packed_output, part.scratch, part.reduction, piece);
      return false;
    };
  operation.finish = [parts, rank = getRank(), size = getSize()] {
    for (auto& part : *parts) {
      fold(part.reduction, part.gathered, size, rank * bytes_of(part.packed_output), part.packed_output);
      convert_to_result(part.reduction, part.packed_output, size);
      copy_back(part.packed_output, part.output);
    }
  };
  operation.outputs = outputs;
  operation.timeout = options.timeout;
  operation.async = is_async(options);
  return submit(std::move(operation));
}

} // namespace orch_ccl
