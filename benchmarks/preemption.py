"""What it costs that ranks ask each other whether to make room: a step with it, beside one without.

    python benchmarks/preemption.py                 # two ranks on this host, one core each

A million weights in FP32 under DistributedDataParallel on gloo, 64 rows on each rank. Blocks of
steps with and without the question take turns in the same processes: the medians of a block's mean
step in processor time, which other work on the machine changes little, and of one question that is
sent and one that is not in wall time. Needs the environment of the stack `current`.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "train" / "lib"))

import torch
import torch.distributed as dist
from measure import arguments, interleaved, report
from orch_node import preemption, stack_signal
from orch_node.preemption import Agreement
from torch.nn.parallel import DistributedDataParallel

ROWS, WIDTH, LAYERS, RANKS = 64, 512, 4, 2
STEPS = 20  # of a block; the question comes about once a second, so in some of them
QUESTIONS = 500
WITHOUT, WITH = "a step", "a step, and the question"


def stepper() -> Callable[[], None]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batch = torch.randn(ROWS, WIDTH)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def mean_step(step: Callable[[], None], steps: int, agreement: Agreement | None) -> float:
    """Seconds of this rank's processor, of so many steps."""
    dist.barrier()
    began = time.process_time()
    for _ in range(steps):
        step()
        if agreement is not None and agreement.ask():
            raise SystemExit("somebody has asked for room")
    return (time.process_time() - began) / steps


def question(*, sent: bool) -> float:
    """Microseconds of one."""
    agreement = Agreement()
    agreement.calls, agreement.every = 1, 1 << 40
    dist.barrier()
    began = time.perf_counter()
    for _ in range(QUESTIONS):
        agreement.of_all(0.0, 0.0) if sent else agreement.ask()
    return (time.perf_counter() - began) / QUESTIONS * 1e6


def rank() -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    dist.init_process_group("gloo")
    os.environ[stack_signal.PREEMPT] = str(stack_signal.DEFAULTS[stack_signal.PREEMPT])
    step, asked = stepper(), arguments()
    mean_step(step, 3, None)
    agreement = preemption.AGREEMENT
    mean_step(step, STEPS, agreement)  # until it knows how many steps a second has
    figures = interleaved(
        {WITHOUT: lambda: mean_step(step, STEPS, None) * 1e3, WITH: lambda: mean_step(step, STEPS, agreement) * 1e3},
        asked.repeats,
    )
    questions = interleaved(
        {"not sent": lambda: question(sent=False), "sent": lambda: question(sent=True)}, asked.repeats
    )
    if dist.get_rank() == 0:
        report(f"{RANKS} ranks, {STEPS} steps a block", "ms of processor time", figures, WITHOUT)
        report("one question", "microseconds", questions, "not sent")
        share = statistics.median(questions["sent"]) / 1e6 / preemption.SECONDS
        print(f"\nof each second, questions take {share:.2e}", file=sys.stderr)
    dist.destroy_process_group()


def main() -> None:
    if "RANK" in os.environ:
        return rank()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env=os.environ | meeting | {"RANK": str(number)})
        for number in range(RANKS)
    ]
    raise SystemExit(max(one.wait() for one in ranks))


if __name__ == "__main__":
    main()
