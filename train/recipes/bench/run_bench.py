"""Measure nodes, the links between them, collectives and a training step: `orch bench` runs this on all nodes.

Each part reports its figures as events named `bench`, whose field `part` is `rank`, `links`, `reduce` or `step`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

import torch
import torch.distributed as dist
from node_links import measure_links
from node_state import Watch, description
from orch_training import ranks
from orch_training.events import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MATRIX_SIZE = 2048
COPIED_BYTES = 128 << 20  # of each rank, larger than its share of the caches
GEMM_SECONDS, COPY_SECONDS = 1.0, 0.5
MESSAGE_BYTES = tuple(1 << power for power in (10, 15, 20, 23, 25))
REDUCE_SECONDS, MAX_REDUCE_SECONDS, MAX_REPETITIONS = 0.3, 2.0, 200
# A transformer with 12.6 million parameters. With two sequences per core, gradients and computation have about the
# proportion of fine-tuning BERT-base with a batch of 32 sequences on 16 cores.
LAYERS, WIDTH, HEADS, TOKENS, SEQUENCES_PER_CORE = 4, 512, 8, 128, 2
STEP_SECONDS, MAX_STEPS = 3.0, 20


def main() -> int:
    """Measure the requested parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="links,node,reduce,step", help="Parts to measure, separated by commas.")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"), help="Precision of the step.")
    parser.add_argument("--output_dir", default="", help="Not used: figures are reported as events.")
    options = parser.parse_args()
    ranks.join()
    parts = {
        "links": measure_links,
        "node": measure_node,
        "reduce": measure_reductions,
        "step": lambda: measure_step(bf16=options.precision == "bf16"),
    }
    names = [name for name in options.parts.split(",") if name in parts]
    for number, name in enumerate(names):
        report("progress", phase=name, step=number, steps=len(names))
        parts[name]()
    report("progress", phase="done", step=len(names), steps=len(names))
    return 0


def measure_node() -> None:
    """Report the rates of this rank's cores while all ranks of its node compute."""
    facts = description()
    has_bf16 = any("bf16" in flag for flag in facts["flags"])
    wait_for_all()
    watch = Watch()
    fp32 = matrix_rate(torch.float32)
    usage = watch.usage(torch.get_num_threads())
    wait_for_all()
    bf16 = matrix_rate(torch.bfloat16) if has_bf16 else 0.0
    wait_for_all()
    report("bench", part="rank", fp32=fp32, bf16=bf16, memory=copy_rate(), **usage, **facts)


def matrix_rate(dtype: torch.dtype) -> float:
    """Return the rate of matrix products in TFLOP/s."""
    a, b = (torch.rand(MATRIX_SIZE, MATRIX_SIZE).to(dtype) for _ in range(2))
    product = torch.mm(a, b)
    seconds = repeat(lambda: torch.mm(a, b, out=product), GEMM_SECONDS)
    return 2 * MATRIX_SIZE**3 / seconds / 1e12


def copy_rate() -> float:
    """Return the memory bandwidth of copies in GB/s: bytes read and written."""
    source = torch.ones(COPIED_BYTES // 4)
    target = source.clone()
    return 2 * COPIED_BYTES / repeat(lambda: target.copy_(source), COPY_SECONDS) / 1e9


def repeat(action: Callable[[], object], seconds: float) -> float:
    """Repeat an action for some seconds and return the mean duration."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        action()
        count += 1
    return elapsed / count


def measure_reductions() -> None:
    """Report the duration of an all-reduce over all ranks for each size of messages, in microseconds."""
    if not ranks.has_group():
        return
    durations: dict[str, float] = {}
    for size in MESSAGE_BYTES:
        message = torch.ones(size // 4)
        first = slowest(timed(lambda message=message: dist.all_reduce(message), 1))
        count = repetitions(first, REDUCE_SECONDS, MAX_REPETITIONS)
        durations[str(size)] = slowest(timed(lambda message=message: dist.all_reduce(message), count)) * 1e6
        if first > MAX_REDUCE_SECONDS:
            break
    if ranks.is_main():
        report("bench", part="reduce", microseconds=durations)


def repetitions(seconds: float, total: float, most: int) -> int:
    """Return how often an action of some seconds can be repeated in a total time: at least once."""
    return max(1, min(most, int(total / max(seconds, 1e-6))))


def timed(action: Callable[[], object], count: int) -> float:
    """Return the mean duration of an action that all ranks begin together, in seconds."""
    wait_for_all()
    began = time.perf_counter()
    for _ in range(count):
        action()
    return (time.perf_counter() - began) / count


def slowest(seconds: float) -> float:
    """Return the largest value of all ranks, equal on all of them."""
    return max(map(float, ranks.gather(seconds)))


def wait_for_all() -> None:
    if ranks.has_group():
        dist.barrier()


def measure_step(*, bf16: bool) -> None:
    """Report the samples per second of a training step of all ranks."""
    sequences = SEQUENCES_PER_CORE * torch.get_num_threads()
    layers = [nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)]
    model: nn.Module = nn.Sequential(*layers)
    if ranks.has_group():
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    samples, targets = torch.rand(2, sequences, TOKENS, WIDTH)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = nn.functional.mse_loss(model(samples), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    first = slowest(timed(step, 1))
    seconds = slowest(timed(step, repetitions(first, STEP_SECONDS, MAX_STEPS)))
    total = ranks.sum_over_ranks(sequences)
    if ranks.is_main():
        threads = torch.get_num_threads()
        report("bench", part="step", samples=total / seconds, threads=threads, precision="bf16" if bf16 else "fp32")


if __name__ == "__main__":
    sys.exit(main())
