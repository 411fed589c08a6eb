"""torch.nn.functional.cross_entropy of many classes, which torch.nn.CrossEntropyLoss calls, with the kernel."""

from __future__ import annotations

import torch

from orch_kernels.library import are_plain

TORCHS = torch._C._nn.cross_entropy_loss
CLASSES = 1024  # from which the kernel is used
NONE, MEAN, SUM = range(3)  # torch.nn._reduction.get_enum


def cross_entropy_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Compute torch's function of this name with the kernel, or with torch if the kernel does not support the input.

    The kernel supports an input [rows, classes] in FP32, or in BF16 under autocast, where the loss is in FP32, and a
    target [rows].
    """
    if weight is not None or label_smoothing != 0 or not is_supported(input, target):
        return TORCHS(input, target, weight, reduction, ignore_index, label_smoothing)
    losses = torch.ops.orch.cross_entropy(input, target, ignore_index)
    if reduction == NONE:
        return losses
    return losses.sum() / (target != ignore_index).sum() if reduction == MEAN else losses.sum()


def is_supported(input: torch.Tensor, target: torch.Tensor) -> bool:
    """Return whether the kernel computes this loss, and is not slower than torch."""
    return (
        are_plain(input, target)
        and torch.is_grad_enabled()
        and input.requires_grad
        and (input.dtype == torch.float32 or (input.dtype == torch.bfloat16 and torch.is_autocast_enabled("cpu")))
        and input.dim() == 2
        and input.shape[1] >= CLASSES
        and target.dtype == torch.int64
        and target.shape == input.shape[:1]
        and len(target) > 0
    )
