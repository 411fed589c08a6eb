"""Decisions of the ranks that concern the whole run."""

from __future__ import annotations

import re

import torch
from orch_node.events import send
from orch_node.protocol.events import Decided

from orch_training import ranks


def report_decision(text: str) -> None:
    """Print and report a decision once, from rank 0."""
    ranks.note(f"{text}.")
    if ranks.is_main():
        send(Decided(text=text))


def report_computation(*, bf16: bool, attention: str, optimizer: str, dropout: str) -> None:
    """Report the precision and the kernels that train the model, once for the run."""
    capabilities = sorted(set(ranks.gather(cpu_capability())))
    report_decision(
        f"{'bf16' if bf16 else 'fp32'} with {' and '.join(capabilities)} kernels; "
        f"attention: {attention}; optimizer: {optimizer}; dropout: {dropout}"
    )


def cpu_capability() -> str:
    """Return the instruction set that torch's own kernels use, such as AVX2 or AVX512."""
    match = re.search(r"CPU capability usage: (\S+)", torch.__config__.show())
    return match[1] if match else "portable"
