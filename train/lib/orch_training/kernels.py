"""The kernels that train a model: orch's for dropout and attention, fused AdamW, and IPEX.

Orch's kernels are used on all ranks or on none, also under torchrun. Fused AdamW makes one pass over the memory instead
of a dozen.

accelerate 1.7 and older replace AdamW with IPEX's, which is used only if requested, and only if the layers keep
learning. accelerate calls ipex.optimize in prepare(), which packs the weights of linear layers into memory that the
layers compute with, and that their parameters share. If a launcher sets LOCAL_RANK, even on one rank, accelerate's
device is `cpu:0` instead of `cpu`, and its model.to(device) then copies all parameters: the optimizer updates the
copies, while the layers keep computing with the packed weights. For bert-qa in BF16 on one rank, the loss after 30
steps is 4.68; it is 3.03 without IPEX.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from orch_node.protocol.environment import KERNELS, TORCHS_KERNELS
from orch_node.rank.computation import find_kernel_problem

from orch_training import checkpoint, describe, ranks

try:
    import orch_kernels
except ImportError:  # the stack's bindings are Intel's, or there are none
    orch_kernels = None

FACT = "kernels"  # in a checkpoint's manifest
ORCH, TORCH = "orch", "torch"
PLAIN, FUSED = "adamw_torch", "adamw_torch_fused"  # the names of TrainingArguments


def problem() -> str | None:
    """Return why this rank cannot use the kernels, or None."""
    return "as requested" if os.environ.get(KERNELS) == TORCHS_KERNELS else find_kernel_problem()


def attention() -> str | None:
    """Return the attention of transformers to train with: without the kernel, eager attention is faster than sdpa.

    None lets transformers choose sdpa for the models that support it; DeBERTa and MPNet do not.
    """
    return "eager" if problem() else None


def settle(start: Path | None = None) -> str:
    """Choose the same kernels on all ranks and describe the choice with its reason.

    A run that resumes from the checkpoint `start` keeps torch's functions if they wrote it: the kernels would drop
    other units.
    """
    recorded = ranks.from_main(checkpoint.facts_of(start).get(FACT) if start else None)
    uses_kernels, reason = choose(ranks.gather(problem()), recorded)
    if orch_kernels:
        (orch_kernels.use if uses_kernels else orch_kernels.restore)()
    if start and recorded == ORCH and not uses_kernels:
        ranks.note(f"{start.name} was written with orch's kernels: dropout differs from now on.")
    return f"{selected()}'s{f' ({reason})' if reason else ''}"


def choose(problems: Sequence[str | None], recorded: object = None) -> tuple[bool, str]:
    """Return whether all ranks use the kernels, and why not."""
    if reason := next(filter(None, problems), None):
        return False, reason
    return (False, "as in the checkpoint") if recorded == TORCH else (True, "")


def selected() -> str:
    """Return whose functions are in use, as checkpoints record it."""
    return ORCH if orch_kernels and orch_kernels.is_in_use() else TORCH


def configure_ipex(use: bool, optimizer: str = PLAIN) -> str:
    """Choose whether accelerate uses IPEX, which it otherwise does if it is installed; call this before accelerate.

    Returns:
        The kind of optimizer: `optimizer`, or PLAIN with IPEX, which replaces it with its own fused one.
    """
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    os.environ["ACCELERATE_USE_IPEX"] = "true" if use else "false"
    return PLAIN if use else optimizer


def adamw(parameters: Iterable[torch.nn.Parameter], kind: str, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW of kind PLAIN or FUSED."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True if kind == FUSED else None)


def report_computation(*, bf16: bool, optimizer: str, kernels: str) -> None:
    """Report the precision and the kernels that train the model, once for the run."""
    capabilities = sorted(set(ranks.gather(torch.backends.cpu.get_cpu_capability())))
    values = {"precision": "bf16" if bf16 else "fp32", "capabilities": " and ".join(capabilities)}
    ranks.report_decision(describe("computation", **values, kernels=kernels, optimizer=optimizer))
