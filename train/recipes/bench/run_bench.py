"""Measure nodes, the links between them, collectives and a training step: `orch bench` runs this on all nodes.

Figures are events named `bench`, whose field `part` is `rank`, `links` or `run`: collectives and the training step.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

import torch
import torch.distributed as dist
from node_links import measure_links
from node_state import Watch, description
from orch_node.events import report
from orch_training import ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.benchmark import Timer

MATRIX_SIZE = 2048
COPIED_BYTES = 128 << 20  # of each rank, larger than its share of the caches
GEMM_SECONDS, COPY_SECONDS = 1.0, 0.5
MESSAGE_BYTES = tuple(1 << power for power in (10, 15, 20, 23, 25))
REDUCE_SECONDS, MAX_REDUCE_SECONDS, MAX_REPETITIONS = 0.3, 2.0, 200
# A transformer with 12.6 million parameters. With two sequences per core, gradients and computation have about the
# proportion of fine-tuning BERT-base with a batch of 32 sequences on 16 cores.
LAYERS, WIDTH, HEADS, TOKENS, SEQUENCES_PER_CORE = 4, 512, 8, 128, 2
STEP_SECONDS = 3.0


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
        "step": lambda: measure_step(options.precision),
    }
    names = [name for name in options.parts.split(",") if name in parts]
    figures: dict[str, object] = {}
    for number, name in enumerate(names):
        report("progress", phase=name, step=number, steps=len(names))
        figures |= parts[name]() or {}
    if ranks.is_main():
        report("bench", part="run", **figures)
    report("progress", phase="done", step=len(names), steps=len(names))
    return 0


def measure_node() -> None:
    """Report the rates of this rank's cores while all ranks of its node compute."""
    facts = description()
    ranks.gather(None)
    watch = Watch()
    fp32 = matrix_rate(torch.float32)
    usage = watch.usage(torch.get_num_threads())
    ranks.gather(None)
    bf16 = matrix_rate(torch.bfloat16) if any("bf16" in flag for flag in facts["flags"]) else 0.0
    ranks.gather(None)
    report("bench", part="rank", fp32=fp32, bf16=bf16, memory=copy_rate(), **usage, **facts)


def matrix_rate(dtype: torch.dtype) -> float:
    """Return the rate of matrix products in TFLOP/s."""
    a, b = (torch.rand(MATRIX_SIZE, MATRIX_SIZE).to(dtype) for _ in range(2))
    return 2 * MATRIX_SIZE**3 / seconds_of("a.mm(b)", GEMM_SECONDS, a=a, b=b) / 1e12


def copy_rate() -> float:
    """Return the memory bandwidth of copies in GB/s: bytes read and written."""
    source = torch.ones(COPIED_BYTES // 4)
    return 2 * COPIED_BYTES / seconds_of("b.copy_(a)", COPY_SECONDS, a=source, b=source.clone()) / 1e9


def seconds_of(statement: str, seconds: float, **tensors: torch.Tensor) -> float:
    """Return the mean duration of a statement that is repeated for at least some seconds."""
    timer = Timer(statement, globals=tensors, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=seconds).mean


def measure_reductions() -> dict[str, object]:
    """Return the duration of an all-reduce over all ranks for each size of messages, in microseconds."""
    durations: dict[str, float] = {}
    for size in MESSAGE_BYTES if ranks.has_group() else ():
        seconds = repeat(partial(dist.all_reduce, torch.ones(size // 4)), REDUCE_SECONDS)
        durations[str(size)] = seconds * 1e6
        if seconds > MAX_REDUCE_SECONDS:
            break
    return {"reductions": durations}


def repeat(action: Callable[[], object], seconds: float) -> float:
    """Repeat an action for about some seconds, as often on all ranks, and return its mean duration on the slowest."""
    action()
    slowest, count = 0.0, 1
    for _ in range(2):  # one repetition first, which tells how many take the seconds
        ranks.gather(None)
        began = time.perf_counter()
        for _ in range(count):
            action()
        slowest = max(map(float, ranks.gather((time.perf_counter() - began) / count)))
        count = max(1, min(MAX_REPETITIONS, int(seconds / max(slowest, 1e-6))))
    return slowest


def measure_step(precision: str) -> dict[str, object]:
    """Return the samples per second of a training step of all ranks."""
    threads = torch.get_num_threads()
    sequences = SEQUENCES_PER_CORE * threads
    layers = [nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)]
    model: nn.Module = nn.Sequential(*layers)
    if ranks.has_group():
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    samples, targets = torch.rand(2, sequences, TOKENS, WIDTH)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = nn.functional.mse_loss(model(samples), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    samples_per_second = sum(ranks.gather(sequences)) / repeat(step, STEP_SECONDS)
    return {"samples": samples_per_second, "threads": threads, "precision": precision}


if __name__ == "__main__":
    sys.exit(main())
