"""Uses orch's kernels for dropout and attention on all ranks or on none, also under torchrun."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from orch_node.protocol.environment import KERNELS, TORCHS_KERNELS

from orch_training import checkpoint, ranks

try:
    import orch_kernels
except ImportError:  # the stack's bindings are Intel's, or there are none
    orch_kernels = None

FACT = "kernels"  # in a checkpoint's manifest
ORCH, TORCH = "orch", "torch"


def problem() -> str | None:
    """Return why this rank cannot use the kernels, or None."""
    if os.environ.get(KERNELS) == TORCHS_KERNELS:
        return "as requested"
    if orch_kernels is None:
        return "the package orch_kernels is not installed"
    reason: str | None = orch_kernels.problem()
    return reason


def attention() -> str:
    """Return the attention of transformers to train with: without the kernel, eager attention is faster than sdpa."""
    return "eager" if problem() else "sdpa"


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
