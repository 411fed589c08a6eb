"""What can be seen of weights from outside a script: which ones compute, whether they change."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

NODES = 200_000  # of a graph; one with more is not looked at to its end
SAMPLE = 4096  # elements of a weight whose next step is foretold
# Whose step is known well enough to say that it must change a weight.
PLAIN = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
PREPACKED = "intel_extension_for_pytorch.nn.utils._weight_prepack"


def leaves(torch: ModuleType, roots: Iterable[Any]) -> Iterator[Any]:
    """The tensors that get gradients if backward() starts at these: the weights that compute."""
    stack = [root.grad_fn for root in roots if torch.is_tensor(root) and root.grad_fn is not None]
    seen = set(stack)
    while stack and len(seen) < NODES:
        node = stack.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def readable(torch: ModuleType, tensor: Any) -> bool:
    """Whether it is an ordinary tensor with all its values here: not a shard, not given back."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return (
        plain
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()
    )


def place(tensor: Any) -> int:
    """The same number for all tensors that share their memory."""
    return int(tensor.untyped_storage().data_ptr())


def checksum(torch: ModuleType, tensor: Any) -> int:
    """Of its bits. Words of 64 bits, as sums of smaller ones are some 50 times slower."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = flat.numel() // 8 * 8
    words = flat[:whole]
    if words.storage_offset() % 8:
        words = words.clone()
    return int(words.view(torch.int64).sum()) + int(flat[whole:].sum())


def parameters(optimizers: Iterable[Any]) -> Iterator[Any]:
    return (p for one in optimizers for group in one.param_groups for p in group["params"])


def must_change(torch: ModuleType, optimizer: Any, computing: Iterable[int]) -> bool:
    """Whether the next step of this optimizer must change some weight of these places, as it has
    its gradients: what SGD would add, and Adam more than that, does not round away."""
    skipped = getattr(optimizer, "found_inf", None)  # told by GradScaler to a fused optimizer
    if type(optimizer).__name__ not in PLAIN or (skipped is not None and bool(skipped)):
        return False
    return any(
        place(p) in computing and moves(torch, p, float(group["lr"]))
        for group in optimizer.param_groups
        for p in group["params"]
        if p.grad is not None
    )


def moves(torch: ModuleType, weight: Any, rate: float) -> bool:
    if not rate > 0 or weight.grad.layout != torch.strided:
        return False
    stride = max(1, weight.numel() // SAMPLE)
    values = weight.detach().reshape(-1)[::stride]
    gradient = weight.grad.detach().reshape(-1)[::stride]
    if not gradient.isfinite().all():
        return False
    step = rate * gradient.float().clamp(-1, 1)
    return bool((values - step.to(values.dtype) != values).any())


def packed_layers() -> list[Any]:
    """The layers of IPEX that compute with weights that it packed; none without IPEX."""
    kind = getattr(sys.modules.get(PREPACKED), "_IPEXPrepackModule", None)
    if kind is None:
        return []
    found = (one for one in gc.get_objects() if issubclass(type(one), kind))
    return [one for one in found if getattr(one, "ctx", None) is not None]


def moved_away(layers: Iterable[Any]) -> list[Any]:
    """Those whose weights are no longer in the memory that they compute with.

    A layer computes with what lies in its `ctx`. ipex.optimize makes `weight` the same memory;
    whoever moves the model afterwards, also from cpu to cpu:0, gives `weight` another one.
    """
    return [
        one for one in layers if one.weight.requires_grad and one.ctx.get_weight().data_ptr() != one.weight.data_ptr()
    ]


def differ(torch: ModuleType, layers: Iterable[Any]) -> list[Any]:
    """Those whose weights have other values than those that they compute with."""
    return [one for one in layers if not torch.equal(one.ctx.get_weight(), one.weight.detach())]


def data_parallel(torch: ModuleType) -> bool:
    """Whether there is a DistributedDataParallel that is to exchange gradients just now."""
    kind = torch.nn.parallel.DistributedDataParallel
    return any(
        issubclass(type(one), kind) and getattr(one, "require_backward_grad_sync", False) for one in gc.get_objects()
    )
