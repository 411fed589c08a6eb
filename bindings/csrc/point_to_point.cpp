// send and recv.

#include "process_group.h"
#include "tensors.h"
#include "types.h"
#include "wire.h"

namespace orch_ccl {
namespace {

at::Tensor checked(const std::string& name, Tensors& tensors, int peer, int tag, int rank) {
  check_single(name, tensors.size());
  check_tensor(name, tensors[0]);
  TORCH_CHECK_VALUE(peer != rank, "ccl: ", name, " to oneself: copy the tensor instead");
  // oneCCL matches messages of a pair by their order. Ignoring a tag could hand out the wrong message.
  if (tag != 0)
    not_implemented(
        name + " with a tag: use tag 0 and rely on the order of messages between two ranks, or a gloo group "
               "(new_group(backend='gloo'))");
  return tensors[0];
}

} // namespace

Handle ProcessGroupCCL::send(Tensors& tensors, int peer, int tag) {
  const auto data = packed(checked("send", tensors, peer, tag, getRank()));
  Operation operation{"send", c10d::OpType::SEND, Lane::sending, peer};
  operation.start = [=](const Group& group, Events& events) {
    wire::send(group, data.data_ptr(), bytes_of(data), peer, events);
  };
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::recv(Tensors& tensors, int peer, int tag) {
  auto tensor = checked("recv", tensors, peer, tag, getRank());
  auto data = packed(tensor);
  Operation operation{"recv", c10d::OpType::RECV, Lane::receiving, peer};
  operation.start = [=](const Group& group, Events& events) {
    wire::receive(group, data.data_ptr(), bytes_of(data), peer, events);
  };
  operation.finish = [=]() mutable { unpack(data, tensor); };
  operation.outputs = tensors;
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::recvAnysource(Tensors&, int) {
  not_implemented("recv from any source: name the source rank, or use a gloo group (new_group(backend='gloo'))");
}

} // namespace orch_ccl
