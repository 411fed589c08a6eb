// allreduce, reduce and reduce_scatter in their forms.

#include <algorithm>
#include <cstring>
#include <map>

#include "process_group.h"
#include "tensors.h"
#include "types.h"
#include "wire.h"

namespace orch_ccl {
namespace {

using c10d::OpType;

// Where the data of all ranks is gathered for a reduction that oneCCL lacks; no tensor otherwise.
at::Tensor gathering_space(const Reduction& by, const at::Tensor& data, int size) {
  return by.fold ? flat_like(data, data.numel() * size) : at::Tensor();
}

void allreduce_or_gather(Events& events, const Group& group, at::Tensor& data, at::Tensor& space, const Reduction& by) {
  if (by.fold)
    wire::allgather(group, data.data_ptr(), space.data_ptr(), bytes_of(data), events);
  else
    wire::allreduce(group, data.data_ptr(), data.data_ptr(), by.count(data), by, events);
}

// `space` holds one block per rank; out = the fold of their pieces at `offset`.
void fold(const Reduction& by, const at::Tensor& space, int size, size_t offset, at::Tensor& out) {
  if (!by.fold || space.numel() == 0)
    return;
  const size_t block = bytes_of(space) / size;
  const auto* in = static_cast<const uint8_t*>(space.data_ptr()) + offset;
  auto* to = static_cast<uint8_t*>(out.data_ptr());
  std::memcpy(to, in, bytes_of(out));
  for (int rank = 1; rank < size; ++rank)
    by.fold(in + rank * block, to, bytes_of(out));
}

// A piece of a reduce_scatter that is too long for one call: `count` elements from `first` of rank
// `root`'s part of the input.
struct Piece {
  int root;
  size_t first, count;
};

std::vector<Piece> pieces_of(size_t count, int size) {
  std::vector<Piece> pieces;
  for (int root = 0; root < size; ++root)
    for (size_t first = 0; first < count; first += wire::most_elements())
      pieces.push_back({root, first, std::min(count - first, wire::most_elements())});
  return pieces;
}

// Other ranks' pieces end in `scratch`, which has room for one: they go one after the other.
void reduce_piece(
    Events& events, const Group& group, const at::Tensor& input, at::Tensor& output, at::Tensor& scratch,
    const Reduction& by, const Piece& piece) {
  const size_t first = wire::bytes_of(piece.first, by);
  const auto* from = static_cast<const char*>(input.data_ptr()) + piece.root * bytes_of(output) + first;
  auto* to = piece.root == group.rank() ? static_cast<char*>(output.data_ptr()) + first : scratch.data_ptr();
  wire::reduce(group, from, to, piece.count, by, piece.root, events);
}

std::string described(const Reduction& by, const at::Tensor& data) {
  return orch_ccl::described(data) + " by " + by.name;
}

void average(const Reduction& by, at::Tensor& data, int size) {
  if (by.average && size > 1)
    divide_in_place(data, size);
}

} // namespace

Handle ProcessGroupCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_single("allreduce", tensors.size());
  auto tensor = tensors[0];
  check_tensor("allreduce", tensor);
  const auto by = reduction_for("allreduce", options.reduceOp, tensor.scalar_type());
  auto data = packed(tensor);
  auto space = gathering_space(by, data, getSize());
  Operation operation{"allreduce", OpType::ALLREDUCE};
  operation.call = described(by, data);
  operation.start = [=](const Group& group, Events& events) mutable {
    allreduce_or_gather(events, group, data, space, by);
  };
  operation.finish = [=, size = getSize()]() mutable {
    fold(by, space, size, 0, data);
    average(by, data, size);
    unpack(data, tensor);
  };
  operation.outputs = tensors;
  operation.timeout = options.timeout;
  operation.async = async_of(options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions&) {
  check_tensors("allreduce", tensors);
  not_implemented("allreduce_sparse: use a gloo group (new_group(backend='gloo')), or tensor.to_dense()");
}

// Tensors of one dtype travel as one buffer: many small messages cost more than copying them together.
Handle ProcessGroupCCL::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  check_tensors("allreduce_coalesced", tensors);
  struct Bundle {
    Reduction by;
    Tensors members;
    at::Tensor flat, space;
  };
  std::map<at::ScalarType, Bundle> bundles; // ordered, so the same order on all ranks
  for (const auto& tensor : tensors)
    bundles[tensor.scalar_type()].members.push_back(tensor);
  auto shared = std::make_shared<std::vector<Bundle>>();
  for (auto& [type, bundle] : bundles) {
    bundle.by = reduction_for("allreduce_coalesced", options.reduceOp, type);
    bundle.flat = flatten(bundle.members);
    bundle.space = gathering_space(bundle.by, bundle.flat, getSize());
    shared->push_back(bundle);
  }
  Operation operation{"allreduce_coalesced", OpType::ALLREDUCE_COALESCED};
  for (const auto& bundle : *shared)
    operation.call += described(bundle.by, bundle.flat) + " ";
  operation.start = [shared](const Group& group, Events& events) {
    for (auto& bundle : *shared)
      allreduce_or_gather(events, group, bundle.flat, bundle.space, bundle.by);
  };
  operation.finish = [shared, size = getSize()] {
    for (auto& bundle : *shared) {
      fold(bundle.by, bundle.space, size, 0, bundle.flat);
      average(bundle.by, bundle.flat, size);
      unflatten(bundle.flat, bundle.members);
    }
  };
  operation.outputs = tensors;
  operation.timeout = options.timeout;
  operation.async = async_of(options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_single("reduce", tensors.size());
  auto tensor = tensors[0];
  check_tensor("reduce", tensor);
  const auto by = reduction_for("reduce", options.reduceOp, tensor.scalar_type());
  const int root = static_cast<int>(options.rootRank);
  check_rank("reduce", root, getSize());
  const bool here = getRank() == root;
  auto data = packed(tensor);
  // Only the root's tensor may change; the others give oneCCL scratch memory to work in.
  auto out = here ? data : at::empty_like(data);
  auto space = gathering_space(by, data, getSize());
  Operation operation{"reduce", OpType::REDUCE};
  operation.call = described(by, data) + " to rank " + std::to_string(root);
  operation.start = [=](const Group& group, Events& events) mutable {
    if (by.fold)
      return allreduce_or_gather(events, group, data, space, by);
    wire::reduce(group, data.data_ptr(), out.data_ptr(), by.count(data), by, root, events);
  };
  operation.finish = [=, size = getSize()]() mutable {
    if (!here)
      return;
    fold(by, space, size, 0, data);
    average(by, data, size);
    unpack(data, tensor);
  };
  operation.outputs = tensors;
  operation.timeout = options.timeout;
  operation.async = async_of(options);
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  check_single("reduce_scatter", outputs.size());
  check_single("reduce_scatter", inputs.size());
  check_tensor("reduce_scatter", outputs[0]);
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

// The inputs have different sizes: input i is reduced to rank i.
Handle ProcessGroupCCL::reduce_to_each(
    at::Tensor& output, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const auto by = reduction_for("reduce_scatter", options.reduceOp, output.scalar_type());
  struct Part {
    at::Tensor input, out, space;
  };
  auto parts = std::make_shared<std::vector<Part>>();
  for (const auto& input : inputs) {
    const auto from = packed(input);
    parts->push_back({from, at::empty_like(from), gathering_space(by, from, getSize())});
  }
  Operation operation{"reduce_scatter", OpType::REDUCE_SCATTER};
  operation.call = described(inputs);
  operation.start = [parts, by](const Group& group, Events& events) {
    for (int rank = 0; rank < group.size(); ++rank) {
      auto& [input, out, space] = (*parts)[rank];
      if (by.fold)
        wire::allgather(group, input.data_ptr(), space.data_ptr(), bytes_of(input), events);
      else
        wire::reduce(group, input.data_ptr(), out.data_ptr(), by.count(input), by, rank, events);
    }
  };
  operation.finish = [=, rank = getRank(), size = getSize()]() mutable {
    auto& mine = (*parts)[rank];
    fold(by, mine.space, size, 0, mine.out);
    average(by, mine.out, size);
    output.copy_(mine.out.view(output.sizes()));
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
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ccl: reduce_scatter_tensor: as many outputs as inputs");
  struct Part {
    Reduction by;
    at::Tensor input, space, packed_output, output;
    at::Tensor scratch; // of a piece, if the input is too long for one call
  };
  auto parts = std::make_shared<std::vector<Part>>();
  std::vector<std::pair<size_t, Piece>> left; // of which part
  Operation operation{"reduce_scatter", OpType::_REDUCE_SCATTER_BASE};
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_tensor("reduce_scatter_tensor", inputs[i]);
    check_tensor("reduce_scatter_tensor", outputs[i]);
    check_same_type("reduce_scatter_tensor", inputs[i], outputs[i]);
    TORCH_CHECK_VALUE(
        inputs[i].numel() == outputs[i].numel() * getSize(),
        "ccl: reduce_scatter_tensor: the input must hold the group's size times the output's elements");
    const auto by = reduction_for("reduce_scatter_tensor", options.reduceOp, inputs[i].scalar_type());
    const auto input = packed(inputs[i]);
    parts->push_back({by, input, gathering_space(by, input, getSize()), packed(outputs[i]), outputs[i]});
    if (!by.fold && by.count(outputs[i]) > wire::most_elements()) {
      parts->back().scratch = flat_like(input, wire::most_elements());
      for (const auto& piece : pieces_of(by.count(outputs[i]), getSize()))
        left.emplace_back(i, piece);
    }
    operation.call += described(by, input) + " ";
  }
  operation.start = [parts](const Group& group, Events& events) {
    for (auto& part : *parts) {
      if (part.by.fold)
        allreduce_or_gather(events, group, part.input, part.space, part.by);
      else if (!part.scratch.defined())
        wire::reduce_scatter(
            group, part.input.data_ptr(), part.packed_output.data_ptr(), part.by.count(part.output), part.by, events);
    }
  };
  if (!left.empty())
    operation.next = [parts, left, done = size_t{0}](Group& group, Events& events) mutable {
      if (done == left.size())
        return true;
      const auto& [number, piece] = left[done++];
      auto& part = (*parts)[number];
      reduce_piece(events, group, part.input, part.packed_output, part.scratch, part.by, piece);
      return false;
    };
  operation.finish = [parts, rank = getRank(), size = getSize()] {
    for (auto& part : *parts) {
      fold(part.by, part.space, size, rank * bytes_of(part.packed_output), part.packed_output);
      average(part.by, part.packed_output, size);
      unpack(part.packed_output, part.output);
    }
  };
  operation.outputs = outputs;
  operation.timeout = options.timeout;
  operation.async = async_of(options);
  return submit(std::move(operation));
}

} // namespace orch_ccl
