// send and recv. Each message consists of an envelope and its data; see mailbox.h.

#include "process_group.h"
#include "tensors.h"
#include "types.h"
#include "wire.h"

namespace orch_ccl {
namespace {

at::Tensor check_single_tensor(const char* name, Tensors& tensors) {
  check_single(name, tensors.size());
  check_tensor(name, tensors[0]);
  return tensors[0];
}

void check_peer(const char* name, int peer, int rank, int size) {
  check_rank(name, peer, size);
  TORCH_CHECK_VALUE(peer != rank, "ccl: ", name, " to the same rank: copy the tensor instead");
}

// A send in progress: the envelope is followed by the data, in pieces.
struct Sending {
  Envelope envelope;
  at::Tensor data;
  size_t sent = 0;

  // Sends the next piece. Returns true if none is left.
  bool next(const Group& group, int peer, Events& events) {
    const size_t length = std::min(bytes_of(data) - sent, wire::max_elements_per_call());
    if (length == 0)
      return true;
    wire::send(group, static_cast<char*>(data.data_ptr()) + sent, length, peer, events);
    sent += length;
    return false;
  }
};

} // namespace

Handle ProcessGroupCCL::send(Tensors& tensors, int peer, int tag) {
  check_peer("send", peer, getRank(), getSize());
  const auto data = as_contiguous(check_single_tensor("send", tensors));
  auto sending = std::make_shared<Sending>(Sending{{tag, bytes_of(data)}, data});
  Operation operation{"send", c10d::OpType::SEND, Lane::sending, peer};
  operation.start = [=](Group& group, Events& events) {
    wire::send(group, &sending->envelope, sizeof(Envelope), peer, events);
  };
  operation.next = [=](Group& group, Events& events) { return sending->next(group, peer, events); };
  return submit(std::move(operation));
}

Handle ProcessGroupCCL::recv(Tensors& tensors, int peer, int tag) {
  check_peer("recv", peer, getRank(), getSize());
  return receive(tensors, peer, tag, c10d::OpType::RECV);
}

Handle ProcessGroupCCL::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, kAnyPeer, tag, c10d::OpType::RECVANYSOURCE);
}

Handle ProcessGroupCCL::receive(Tensors& tensors, int source, int tag, c10d::OpType type) {
  auto tensor = check_single_tensor("recv", tensors);
  check_output("recv", tensor);
  auto receive = std::make_shared<Receive>(Receive{source, tag, as_contiguous(tensor)});
  Operation operation{"recv", type, Lane::receiving, source};
  operation.source = std::make_shared<int>(source);
  operation.start = [=](Group& group, Events&) { group.mailbox().post(receive); };
  operation.next = [=](Group& group, Events&) { return group.mailbox().test_receive(group, *receive); };
  operation.finish = [=, from = operation.source]() mutable {
    copy_back(receive->data, tensor);
    *from = receive->sender;
  };
  operation.outputs = tensors;
  return submit(std::move(operation));
}

} // namespace orch_ccl
