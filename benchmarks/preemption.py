"""Measure the cost of agreeing on a preemption: steps with and without the exchange between ranks.

    python benchmarks/preemption.py                 # two ranks on this host, one core each

It trains a million FP32 weights with DistributedDataParallel on gloo, 64 rows per rank. Blocks of steps with and
without the exchange alternate in the same processes. It prints the median of the mean step of a block in processor
time, which other work on the machine hardly changes, and of one query with and without an exchange in elapsed time. It
needs the environment of the stack `current`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "train" / "lib"))

import torch
import torch.distributed as dist
from measure import arguments, free_port, interleaved, report
from orch_node import preemption
from orch_node.preemption import Agreement
from orch_node.protocol.environment import DEFAULT_SIGNALS, PREEMPT_SIGNAL
from torch.nn.parallel import DistributedDataParallel

ROWS, WIDTH, LAYERS, RANKS = 64, 512, 4, 2
STEPS = 20  # per block; the exchange happens about once per second
QUERIES = 500
PLAIN_STEP, CHECKED_STEP = "a step", "a step with the check"


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
    """Return the mean processor time of a step on this rank, in seconds."""
    dist.barrier()
    began = time.process_time()
    for _ in range(steps):
        step()
        if agreement is not None and agreement.is_preempted():
            raise SystemExit("a preemption was requested")
    return (time.process_time() - began) / steps


def query(*, exchanged: bool) -> float:
    """Return the microseconds of one query, with or without an exchange."""
    agreement = Agreement()
    agreement.calls, agreement.every = 1, 1 << 40
    dist.barrier()
    began = time.perf_counter()
    for _ in range(QUERIES):
        agreement.maximum(0.0, 0.0) if exchanged else agreement.is_preempted()
    return (time.perf_counter() - began) / QUERIES * 1e6


def rank() -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    dist.init_process_group("gloo")
    os.environ[PREEMPT_SIGNAL] = str(DEFAULT_SIGNALS[PREEMPT_SIGNAL])
    step, options = stepper(), arguments()
    mean_step(step, 3, None)
    agreement = preemption.AGREEMENT
    mean_step(step, STEPS, agreement)  # until it knows the number of steps per second
    figures = interleaved(
        {
            PLAIN_STEP: lambda: mean_step(step, STEPS, None) * 1e3,
            CHECKED_STEP: lambda: mean_step(step, STEPS, agreement) * 1e3,
        },
        options.repeats,
    )
    queries = interleaved(
        {"local": lambda: query(exchanged=False), "exchanged": lambda: query(exchanged=True)}, options.repeats
    )
    if dist.get_rank() == 0:
        report(f"{RANKS} ranks, {STEPS} steps a block", "ms of processor time", figures, PLAIN_STEP)
        report("one query", "microseconds", queries, "local")
        share = statistics.median(queries["exchanged"]) / 1e6 / preemption.SECONDS
        print(f"\nshare of each second for queries: {share:.2e}", file=sys.stderr)
    dist.destroy_process_group()


def main() -> None:
    if "RANK" in os.environ:
        return rank()
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env=os.environ | rendezvous | {"RANK": str(number)})
        for number in range(RANKS)
    ]
    raise SystemExit(max(process.wait() for process in ranks))


if __name__ == "__main__":
    main()
