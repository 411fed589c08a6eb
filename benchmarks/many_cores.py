"""Compare splits of this machine's cores into ranks and threads, and backends, by a DDP step and all_reduce.

    python benchmarks/many_cores.py                       # all splits, BERT-base in BF16 where the CPU has it
    python benchmarks/many_cores.py --model mini --ranks 2,4 --repeats 1

The model has random weights, and every split trains the same global batch. The cases of a split:

- alone: ranks without communication, under torchrun; they never wait for each other
- gloo, torchrun; gloo, orch; ccl, orch: DistributedDataParallel

It prints samples per second, the ratio to gloo under torchrun, seconds of processor time by kind of thread in rank 0,
and the time of all_reduce by size. The last line is JSON with --json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measure import describe_machine, interleaved, native_precision

KB, MB = 1024, 1024 * 1024
SIZES = (4 * KB, 64 * KB, MB, 4 * MB, 25 * MB, 100 * MB)
MODELS = {"base": (768, 12, 12, 3072), "mini": (384, 6, 12, 1536)}  # width, layers, heads, width between
WARM_UP = 2  # steps or calls that are not measured
RESULT = "RESULT "
ORCH = (sys.executable, "-m", "orchestrator.cli.main", "train", __file__)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="base")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default=native_precision())
    parser.add_argument("--batch", type=int, default=32, help="samples per step of all ranks together")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", default="", help="numbers of ranks, separated by commas; default: all that divide")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", choices=("step", "alone", "all_reduce"), help="this process is a rank")
    return parser.parse_args()


def thread_seconds() -> dict[str, float]:
    """Return the processor time of this process by the names of its threads."""
    ticks = os.sysconf("SC_CLK_TCK")
    seconds: dict[str, float] = defaultdict(float)
    for task in Path("/proc/self/task").iterdir():
        name, fields = task.joinpath("stat").read_text().split("(", 1)[1].rsplit(")", 1)
        user, system = fields.split()[11:13]
        label = "main" if task.name == str(os.getpid()) else name
        seconds[label] += (int(user) + int(system)) / ticks
    return {name: round(value, 2) for name, value in seconds.items() if value >= 0.01}


def make_step(options: argparse.Namespace, ranks: int, *, communicates: bool) -> Callable[[], None]:
    from transformers import BertConfig, BertForQuestionAnswering

    torch.manual_seed(0)
    width, layers, heads, between = MODELS[options.model]
    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=between
    )
    model: torch.nn.Module = BertForQuestionAnswering(config).train()
    if communicates:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batch = options.batch // ranks
    inputs = {
        "input_ids": torch.randint(1000, 30000, (batch, options.tokens)),
        "attention_mask": torch.ones(batch, options.tokens, dtype=torch.long),
        "start_positions": torch.full((batch,), 9),
        "end_positions": torch.full((batch,), 12),
    }

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + WARM_UP):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times[WARM_UP:])


def all_reduce_seconds() -> dict[int, float]:
    result = {}
    for size in SIZES:
        data = torch.ones(size // 4)
        times = []
        for _ in range(10 + WARM_UP):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(data)
            times.append(time.perf_counter() - began)
            data.fill_(1)
        result[size] = statistics.median(times[WARM_UP:])
    return result


def run_rank(options: argparse.Namespace) -> None:
    ranks = int(os.environ["WORLD_SIZE"])
    result: dict[str, Any] = {}
    if options.inside != "alone" and ranks > 1:
        dist.init_process_group("gloo")  # under orch it is the group of the chosen backend
    if options.inside == "all_reduce":
        result["seconds"] = all_reduce_seconds()
    else:
        step = make_step(options, ranks, communicates=options.inside == "step" and ranks > 1)
        result["samples_per_second"] = options.batch / median_seconds(step, options.steps)
        result["thread_seconds"] = thread_seconds()
    if os.environ["RANK"] == "0":
        print(RESULT + json.dumps(result), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def run_ranks(case: str, inside: str, ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the ranks of a case, and return the result of rank 0."""
    threads = len(os.sched_getaffinity(0)) // ranks
    passed = ["--inside", inside, "--model", options.model, "--precision", options.precision]
    passed += ["--batch", str(options.batch), "--tokens", str(options.tokens), "--steps", str(options.steps)]
    if case.endswith("orch"):
        backend = case.partition(",")[0]
        command = [*ORCH, "--ppn", str(ranks), "--backend", backend, "--project", "none", "--", *passed]
    else:
        command = [*TORCHRUN, str(ranks), __file__, *passed]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "COLUMNS": "1000"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = (process.stdout + process.stderr).splitlines()
    result = next((line.partition(RESULT)[2] for line in lines if RESULT in line), "")
    if not result:
        sys.exit(f"{case}, {ranks} ranks: no result\n{process.stdout}{process.stderr}")
    return json.loads(result)


def measure_split(ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the medians of a split by case, and print them."""
    cases = {"alone": "alone", "gloo, torchrun": "step", "gloo, orch": "step", "ccl, orch": "step"}
    if ranks == 1:
        cases = {"alone": "alone"}
    processor: dict[str, dict[str, float]] = {}

    def speed(case: str, inside: str) -> float:
        result = run_ranks(case, inside, ranks, options)
        processor[case] = result["thread_seconds"]
        return result["samples_per_second"]

    turns = {case: lambda case=case, inside=inside: speed(case, inside) for case, inside in cases.items()}
    figures = interleaved(turns, options.repeats)
    medians = {case: statistics.median(values) for case, values in figures.items()}
    threads = len(os.sched_getaffinity(0)) // ranks
    print(f"\n{ranks} x {threads}: samples/s, ratio to gloo under torchrun, processor seconds in rank 0")
    for case, median in medians.items():
        ratio = median / medians.get("gloo, torchrun", median)
        spread = f"{min(figures[case]):.2f}..{max(figures[case]):.2f}"
        print(f"  {case:15} {median:8.2f} {ratio:6.2f} x  {spread:16} {processor[case]}", flush=True)
    split = {"ranks": ranks, "threads": threads, "samples_per_second": figures, "thread_seconds": processor}
    if ranks == 1:
        return split
    reduced = {
        case: run_ranks(case, "all_reduce", ranks, options)["seconds"] for case in ("gloo, torchrun", "ccl, orch")
    }
    for size in map(str, SIZES):
        gloo, ccl = (times[size] for times in reduced.values())
        print(
            f"  all_reduce {int(size) // KB:7} KB: ccl {ccl * 1e6:8.0f} us, gloo {gloo * 1e6:8.0f} us, {ccl / gloo:.3f}"
        )
    return split | {"all_reduce_seconds": reduced}


def main() -> None:
    options = arguments()
    if options.inside:
        return run_rank(options)
    cores = len(os.sched_getaffinity(0))
    divisors = [ranks for ranks in range(1, cores + 1) if cores % ranks == 0 and options.batch % ranks == 0]
    ranks = [int(number) for number in options.ranks.split(",")] if options.ranks else divisors
    about = {"machine": describe_machine(), "torch": torch.__version__, "model": options.model}
    about |= {name: getattr(options, name) for name in ("precision", "batch", "tokens", "steps", "repeats")}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    splits = [measure_split(number, options) for number in ranks]
    if options.json:
        print(json.dumps({"schema": 1, "about": about, "splits": splits}))


if __name__ == "__main__":
    main()
