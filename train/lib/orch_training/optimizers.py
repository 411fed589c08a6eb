"""AdamW, fused where torch can: one pass over the memory instead of a dozen."""

from __future__ import annotations

from collections.abc import Iterable

import torch

# torch 2.4 has brought it to CPUs. Names as TrainingArguments has them.
FUSES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)
PLAIN, FUSED = "adamw_torch", "adamw_torch_fused"
FASTEST = FUSED if FUSES else PLAIN


def chosen(kind: str, use_ipex: bool) -> str:
    """IPEX has a fused step of its own, which it puts in the place of the plain one."""
    return PLAIN if use_ipex else kind


def adamw(parameters: Iterable[torch.nn.Parameter], kind: str, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """`kind`: PLAIN or FUSED."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True if kind == FUSED else None)
