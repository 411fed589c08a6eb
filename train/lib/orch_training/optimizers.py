"""AdamW, fused if torch supports it: one pass over the memory instead of a dozen."""

from __future__ import annotations

from collections.abc import Iterable

import torch

# torch supports it on CPUs since 2.4. The names are those of TrainingArguments.
FUSES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)
PLAIN, FUSED = "adamw_torch", "adamw_torch_fused"
FASTEST = FUSED if FUSES else PLAIN


def optimizer_for(kind: str, use_ipex: bool) -> str:
    """Return the kind of optimizer; IPEX replaces the plain one with its own fused one."""
    return PLAIN if use_ipex else kind


def adamw(parameters: Iterable[torch.nn.Parameter], kind: str, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW of kind PLAIN or FUSED."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True if kind == FUSED else None)
