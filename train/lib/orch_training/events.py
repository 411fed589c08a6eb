"""Reports a rank's progress, and decisions that concern the whole run, to the supervisor and to the log."""

from __future__ import annotations

import time

import torch
from orch_node.events import report, send
from orch_node.protocol.events import Decided

from orch_training import ranks

EVERY_SECONDS = 1.0


class Progress:
    """The progress of one phase, reported at most once a second unless `now` is set."""

    def __init__(self, phase: str, steps: int) -> None:
        self.phase = phase
        self.steps = steps
        self.last_report = 0.0

    def report(self, step: int, *, now: bool = False, **fields: object) -> None:
        if now or time.monotonic() - self.last_report >= EVERY_SECONDS:
            report("progress", phase=self.phase, step=step, steps=self.steps, **fields)
            self.last_report = time.monotonic()


def report_decision(text: str) -> None:
    """Print and report a decision once, from rank 0."""
    ranks.note(f"{text}.")
    if ranks.is_main():
        send(Decided(text=text))


def report_computation(*, bf16: bool, optimizer: str, kernels: str) -> None:
    """Report the precision and the kernels that train the model, once for the run."""
    capabilities = sorted(set(ranks.gather(torch.backends.cpu.get_cpu_capability())))
    report_decision(
        f"{'bf16' if bf16 else 'fp32'} with {' and '.join(capabilities)} kernels; "
        f"attention and dropout: {kernels}; optimizer: {optimizer}"
    )
