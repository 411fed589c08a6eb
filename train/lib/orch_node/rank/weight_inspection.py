"""Inspect weights from outside a script: which ones get gradients, and whether they change."""

from __future__ import annotations

import gc
import sys
import zlib
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

MAX_GRAPH_NODES = 200_000  # of a larger graph only a part is searched
SAMPLE_SIZE = 4096  # elements of a weight whose next step is predicted
# Optimizers whose step can be predicted well enough to say that it must change a weight.
PREDICTABLE_OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
IPEX_PREPACK_MODULE = "intel_extension_for_pytorch.nn.utils._weight_prepack"


def as_list(torch: ModuleType, tensors: Any) -> list[Any]:
    """Return the tensors that torch.autograd's functions accept: one, a sequence or a dictionary of them, or None."""
    if torch.is_tensor(tensors):
        return [tensors]
    return list(tensors.values() if isinstance(tensors, dict) else tensors or ())


def graph_nodes(torch: ModuleType, roots: Iterable[Any]) -> Iterator[Any]:
    """Yield the nodes of the graph that backward() from these tensors goes through; leaves have a `variable`."""
    stack = [root.grad_fn for root in roots if torch.is_tensor(root) and root.grad_fn is not None]
    visited = set(stack)
    while stack and len(visited) < MAX_GRAPH_NODES:
        node = stack.pop()
        yield node
        for next_node, _ in node.next_functions:
            if next_node is not None and next_node not in visited:
                visited.add(next_node)
                stack.append(next_node)


def is_in_fp32(torch: ModuleType, node: Any) -> bool:
    """Return whether a node of a graph computes in FP32 on a CPU; False for casts and for functions in Python."""
    if hasattr(node, "variable"):
        return bool(node.variable.dtype == torch.float32 and node.variable.device.type == "cpu")
    name = type(node).__name__
    is_python = isinstance(node, torch.autograd.function.BackwardCFunction) and not name.startswith("_DDPSink")
    return not is_python and not name.startswith("ToCopyBackward")


def is_readable(torch: ModuleType, tensor: Any) -> bool:
    """Return whether this is an ordinary CPU tensor with all its values: not sharded, not freed."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()
    )


def storage_address(tensor: Any) -> int:
    """Return the address of a tensor's storage, which is equal for tensors that share memory."""
    return int(tensor.untyped_storage().data_ptr())


def addresses(tensors: Iterable[Any]) -> set[int]:
    return {storage_address(tensor) for tensor in tensors}


def checksum(torch: ModuleType, tensor: Any) -> int:
    """Return a checksum of a tensor's bits."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    aligned_size = data.numel() // 8 * 8
    # Sum 64-bit integers: sums of smaller ones are about 50 times slower.
    integers = data[:aligned_size]
    if integers.storage_offset() % 8:
        integers = integers.clone()
    return int(integers.view(torch.int64).sum()) + int(data[aligned_size:].sum())


def sample(weight: Any, size: int = 64) -> Any:
    """Return a copy of about `size` elements of a weight, spread over all of it; complex ones are two numbers each."""
    elements = weight.detach().reshape(-1)[:: max(1, weight.numel() // size)].clone()
    return elements.view(elements.real.dtype) if elements.is_complex() else elements


def shape_checksum(held: Iterable[Any]) -> int:
    """Return a checksum of the shapes and types of tensors, which is not 0."""
    return zlib.crc32(repr([(*weight.shape, str(weight.dtype)) for weight in held]).encode()) | 1


def parameters(optimizers: Iterable[Any]) -> Iterator[Any]:
    """Yield the parameters of all these optimizers."""
    return (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])


def must_change(torch: ModuleType, optimizer: Any, addresses: Iterable[int]) -> bool:
    """Return whether this optimizer's next step must change a weight at one of these addresses.

    True only if the step of SGD would not be rounded away; the other predictable optimizers make
    larger ones.
    """
    found_inf = getattr(optimizer, "found_inf", None)  # set by GradScaler on a fused optimizer
    if type(optimizer).__name__ not in PREDICTABLE_OPTIMIZERS or (found_inf is not None and bool(found_inf)):
        return False
    return any(
        storage_address(p) in addresses and is_changed_by_step(torch, p, float(group["lr"]))
        for group in optimizer.param_groups
        for p in group["params"]
        if p.grad is not None
    )


def is_changed_by_step(torch: ModuleType, weight: Any, learning_rate: float) -> bool:
    """Return whether a step of SGD changes the weight in its precision."""
    if not learning_rate > 0 or weight.grad.layout != torch.strided:
        return False
    values, gradient = sample(weight, SAMPLE_SIZE), sample(weight.grad, SAMPLE_SIZE)
    if not gradient.isfinite().all():
        return False
    step = learning_rate * gradient.float().clamp(-1, 1)
    return bool((values - step.to(values.dtype) != values).any())


def objects_of(classes: Any) -> list[Any]:
    """Return the objects of this process of a class or of any of several classes; () takes no time."""
    objects = gc.get_objects() if classes else []
    # Types are few: testing each of them, not each object, takes half of the time.
    matches = {kind for kind in set(map(type, objects)) if issubclass(kind, classes)}
    return [value for value in objects if type(value) in matches] if matches else []


def packed_layers() -> tuple[list[Any], list[Any]]:
    """Return the layers of IPEX that compute with packed copies of their weights, and those whose weights are detached.

    A layer computes with the copy in its `ctx`. ipex.optimize() makes `weight` share its memory;
    moving the model afterwards, even from cpu to cpu:0, gives `weight` other memory.
    """
    layers = objects_of(getattr(sys.modules.get(IPEX_PREPACK_MODULE), "_IPEXPrepackModule", ()))
    packed = [layer for layer in layers if getattr(layer, "ctx", None) is not None]
    trained = (layer for layer in packed if layer.weight.requires_grad)
    return packed, [layer for layer in trained if layer.ctx.get_weight().data_ptr() != layer.weight.data_ptr()]
