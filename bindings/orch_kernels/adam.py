"""torch.optim.Adam and AdamW, updated in one pass over the parameters, as with `fused=True`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import adam

from orch_kernels.library import are_plain

NAMES = ("_single_tensor_adam", "_multi_tensor_adam")  # what torch computes by default, and with `foreach=True`
TORCHS = {name: getattr(adam, name) for name in NAMES}


def replace() -> None:
    """Replace torch's functions."""
    for name, original in TORCHS.items():
        setattr(adam, name, fusing(original))


def restore() -> None:
    """Restore torch's functions."""
    for name, original in TORCHS.items():
        setattr(adam, name, original)


def fusing(original: Callable[..., None]) -> Callable[..., None]:
    """Return a step of Adam that torch's fused kernel computes, if it supports the tensors and settings."""

    @functools.wraps(original)
    def step(*lists: list[torch.Tensor], **settings: Any) -> None:
        function = adam._fused_adam if is_supported(lists, settings) else original
        function(*lists, **settings)

    return step


def is_supported(lists: tuple[list[torch.Tensor], ...], settings: dict[str, Any]) -> bool:
    """Return whether the fused kernel does the same: it reads all tensors of a parameter in the order of memory."""
    tensors = [tensor for one_list in lists for tensor in one_list]
    return (
        are_plain(*tensors)
        and torch._C._len_torch_dispatch_stack() == 0  # modes see torch's operators
        and "decoupled_weight_decay" in settings  # not before torch 2.7, whose AdamW has functions of its own
        and not settings["differentiable"]
        and not settings["capturable"]
        and not any(isinstance(value, torch.Tensor) for value in settings.values())
        and all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors)
    )
