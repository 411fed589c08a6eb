"""Measure nodes, the links between them, collectives and a training step: `orch bench` runs this on all nodes.

Figures are events named `bench`, whose field `part` is `rank`, `links` or `run`: collectives and the training step.

Connections are measured between all pairs of nodes, many pairs at a time. The first ranks of the nodes play a
round-robin tournament: in each round, every node is in one match. They send through a process group of gloo, whose
messages between two ranks share one connection.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

import psutil
import torch
import torch.distributed as dist
from orch_node.events import report
from orch_node.standalone import facts
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
LINKS_SECONDS = 40.0  # for the transfers of all rounds
TRANSFER_SECONDS = (0.02, 0.3)  # the shortest and the longest transfer in one direction
MAX_PINGS, PING_SECONDS = 300, 0.2
CHUNK, MAX_CHUNKS = 1 << 18, 1 << 12
ROWS_PER_EVENT = 40
CGROUPS = Path("/sys/fs/cgroup")

Match = tuple[int, int]
Row = dict[str, float]  # the peer's first rank, Gbit/s from the peer to this node, and microseconds one way


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
    state = description()
    ranks.gather(None)
    before = clocks()
    fp32 = matrix_rate(torch.float32)
    wall, used, busy = (after - begin for begin, after in zip(before, clocks(), strict=True))
    usage = {"cpu": min(1.0, used / wall / torch.get_num_threads()), "used_by_others": max(0.0, busy - used) / wall}
    ranks.gather(None)
    bf16 = matrix_rate(torch.bfloat16) if any("bf16" in flag for flag in state["flags"]) else 0.0
    ranks.gather(None)
    source = torch.ones(COPIED_BYTES // 4)
    memory = 2 * COPIED_BYTES / seconds_of("b.copy_(a)", COPY_SECONDS, a=source, b=source.clone()) / 1e9  # GB/s
    report("bench", part="rank", fp32=fp32, bf16=bf16, memory=memory, **usage, **state)


def clocks() -> tuple[float, float, float]:
    """Return the time, the processor time of this process, and the seconds for which its CPUs have been busy."""
    cpus = os.sched_getaffinity(0)
    times = [cpu for number, cpu in enumerate(psutil.cpu_times(percpu=True)) if number in cpus]
    busy = sum(cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq + cpu.steal for cpu in times)
    return time.perf_counter(), time.process_time(), busy


def description() -> dict[str, object]:
    """Return the facts of this node that explain its rates."""
    address = ""
    with contextlib.suppress(OSError):
        address = facts.address_towards(os.environ.get("MASTER_ADDR", ""))  # of this node, on the way to the first rank
    interface = next((name for name, addresses in facts.interfaces().items() if address in addresses), "")
    # /sys/class/net, which facts.nics() reads, shows another network namespace in some containers.
    statistics = psutil.net_if_stats().get(interface)
    speed = statistics.speed if statistics else 0
    speeds = {name: nic["speed"] or 0 for name, nic in facts.nics().items()}
    fastest = max(speeds, key=lambda name: speeds[name], default="")
    cpus = os.sched_getaffinity(0)
    frequencies = [cpu.current for number, cpu in enumerate(psutil.cpu_freq(percpu=True) or ()) if number in cpus]
    return {
        "quota": min(filter(None, map(quota_of, cgroup_folders())), default=0.0),
        "megahertz": sum(frequencies) / max(1, len(frequencies)),
        "flags": facts.cpu_flags(),
        "interface": interface,
        "speed": speed,
        "faster": fastest if speed and fastest and speeds[fastest] > speed else "",
    }


def cgroup_folders() -> Iterator[Path]:
    """Yield the cgroups of this process that can have a quota, of both versions of cgroups, with their parents."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = CGROUPS / controllers
        folder = top / path.lstrip("/")
        yield from (parent for parent in (folder, *folder.parents) if parent.is_relative_to(top))


def quota_of(folder: Path) -> float:
    """Return the quota of one cgroup in cores, 0 without one."""
    text = facts.read_text(folder / "cpu.max") or " ".join(
        facts.read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
    )
    numbers = re.fullmatch(r"([0-9]+) ([0-9]+)", text)
    return int(numbers[1]) / int(numbers[2]) if numbers else 0.0


def matrix_rate(dtype: torch.dtype) -> float:
    """Return the rate of matrix products in TFLOP/s."""
    a, b = (torch.rand(MATRIX_SIZE, MATRIX_SIZE).to(dtype) for _ in range(2))
    return 2 * MATRIX_SIZE**3 / seconds_of("a.mm(b)", GEMM_SECONDS, a=a, b=b) / 1e12


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


def measure_links() -> None:
    """Report the bandwidth from each other node to this one, and the latency."""
    first_ranks = [rank for rank, local in enumerate(ranks.gather(os.environ.get("LOCAL_RANK", "0"))) if local == "0"]
    if len(first_ranks) == 1:
        return
    shortest, longest = TRANSFER_SECONDS
    seconds = max(shortest, min(longest, LINKS_SECONDS / (2 * len(first_ranks))))
    group = dist.new_group(first_ranks, backend="gloo")
    rows: list[Row] = []
    for matches in rounds(first_ranks):
        dist.barrier()
        rows += [measure_pair(match, group, seconds) for match in matches if ranks.rank() in match]
    for start in range(0, len(rows), ROWS_PER_EVENT):
        report("bench", part="links", rows=rows[start : start + ROWS_PER_EVENT])


def rounds(players: list[int]) -> Iterator[list[Match]]:
    """Yield the matches of each round of a tournament in which all players meet once (circle method)."""
    seats: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    half = len(seats) // 2
    for _ in range(len(seats) - 1):
        opposite = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def measure_pair(match: Match, group: dist.ProcessGroup, seconds: float) -> Row:
    """Measure the connection with the other node of a match in both directions, and its latency."""
    peer = match[0] if ranks.rank() == match[1] else match[1]
    byte, chunk = torch.zeros(1, dtype=torch.uint8), torch.zeros(CHUNK, dtype=torch.uint8)

    def ping(count: int) -> None:
        for _ in range(count):
            for sender in match:
                (dist.recv if sender == peer else dist.send)(byte, peer, group)

    def transfer(sender: int, count: int) -> None:
        post = dist.irecv if sender == peer else dist.isend
        for message in [post(chunk, peer, group) for _ in range(count)]:
            message.wait()

    def seconds_of(action: Callable[[int], None], timer: int, seconds: float, most: int) -> float:
        """Repeat an action for about some seconds and return its mean duration; one node decides how often.

        The first repetition fills what queues absorb.
        """
        action(1)
        began = time.perf_counter()
        action(1)
        count = torch.tensor([max(1, min(most, int(seconds / max(time.perf_counter() - began, 1e-9))))])
        (dist.recv if timer == peer else dist.send)(count, peer, group)
        began = time.perf_counter()
        action(int(count))
        return (time.perf_counter() - began) / int(count)

    latency = seconds_of(ping, match[0], PING_SECONDS, MAX_PINGS) / 2 * 1e6
    for receiver, sender in (match, match[::-1]):
        transferred = seconds_of(partial(transfer, sender), receiver, seconds, MAX_CHUNKS)
        if sender == peer:
            gbit = CHUNK * 8 / transferred / 1e9
    return {"peer": peer, "gbit": gbit, "microseconds": latency}


if __name__ == "__main__":
    sys.exit(main())
