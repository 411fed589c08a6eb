"""Compare ccl with gloo in the same processes on the same tensors; print medians of alternating turns.

    python benchmarks/collectives.py                      # two ranks on this host, one core each
    python benchmarks/collectives.py --ranks 4 --json out.json
    python benchmarks/collectives.py --busy --only all_reduce   # with other work on every core

Between hosts: between_hosts.py. A ratio below 1 means that ccl is faster than gloo.

The columns:

- limit: what memory allows. The same ranks reduce and copy the bytes that the collective needs of each: for all_gather
  the whole result, in place (as FSDP calls it) all but the rank's part. reduce_scatter writes to a separate tensor.
- placed: ccl with tensors in memory that all ranks of the host share, as allocate_tensor() of the backend gives them to
  DDP and FSDP2.
- torch: the same call on torch's backend `fake`, which does nothing. No backend can save this time.
- mpi: the same libmpi through mpi4py, if that is installed. It cannot reduce BF16.

This needs the environment of the stack `current`. ORCH_CCL_SHARED_MEMORY applies to the ranks. `--busy` runs a process
that never sleeps on each core during the measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from measure import describe_machine, free_port

KB, MB = 1024, 1024 * 1024
SIZES = (8, KB, 64 * KB, MB, 4 * MB, 25 * MB, 100 * MB, 400 * MB, 1024 * MB)
TARGETS = dict(zip(SIZES, [0.25] * 5 + [0.45] + [0.8] * 3, strict=True))  # ratio to gloo's time
STEP_TARGET = 0.92
BUSY_TARGET = 1.1  # ratio to gloo's time, with other work on every core
LIMIT_TARGET = 1.6  # ratio to the limit for all_reduce from 1 MB on, on an idle machine
MODELS = {  # width, layers, heads, vocabulary, batch, sequence
    "17M parameters": (384, 3, 6, 30522, 8, 64),
    "BERT-base size": (768, 12, 12, 30522, 4, 64),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=15, help="samples of each measurement")
    parser.add_argument("--max-mb", type=int, default=100, help="leave out larger messages")
    parser.add_argument("--no-models", action="store_true", help="leave out the DDP steps")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--only", default="", help="measure only this collective; implies --no-models")
    parser.add_argument("--busy", action="store_true", help="with a busy process on each core")
    parser.add_argument("--inside", action="store_true", help="this process is already a rank")
    return parser.parse_args()


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Run one process that never sleeps on each usable core until the block ends."""
    busy = [sys.executable, "-c", "while True: pass"]
    processes = [
        subprocess.Popen(["taskset", "--cpu-list", str(core), *busy]) for core in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start_ranks(ranks: int) -> int:
    """Start this script again with the hydra of this environment."""
    hydra = Path(sys.executable).parent / "mpiexec.hydra"
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [hydra, "-n", str(ranks), sys.executable, *sys.argv, "--inside"]
    return subprocess.run(command, env=environment, check=False).returncode


def pin_to_one_core() -> None:
    """Pin this rank to one core, because hydra gives each rank a share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    local = int(os.environ.get("MPI_LOCALRANKID", 0))
    has_all_cores = len(cores) == os.cpu_count()
    os.sched_setaffinity(0, {cores[local % len(cores)] if has_all_cores else cores[0]})


def time_turns(cases: dict, repeat: int, inner: int) -> dict[str, list[float]]:
    """Return the seconds of each case, measured in turns so that a disturbance affects all of them."""

    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeat + 2):
        for name, work in cases.items():
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(inner):
                work()
            if turn >= 2:
                times[name].append((time.perf_counter() - begun) / inner)
    return times


def row(title: str, times: dict[str, list[float]], target: float, limit: float = 0) -> dict:
    """Return the medians, ccl's ratio to gloo and its targets; `limit`: of ccl/limit, or 0."""
    median = {name: statistics.median(values) for name, values in times.items()}
    ratio = median["ccl"] / median["gloo"]
    return {f"{name}_s": seconds for name, seconds in median.items()} | {
        "what": title,
        "ratio": ratio,
        "target": target,
        "met": ratio <= target and (not limit or median["ccl"] <= limit * median["limit"]),
    }


def size_text(size: int) -> str:
    return f"{size} B" if size < KB else f"{size // KB} KB" if size < MB else f"{size // MB} MB"


def targets_of(name: str, size: int, busy: bool) -> tuple[float, float]:
    """Return the most that ccl/gloo and ccl/limit may be; 0 if there is no target."""
    if busy:
        return BUSY_TARGET, 0
    return TARGETS[size], LIMIT_TARGET if name == "all_reduce" and size >= MB else 0


def limit_of(name: str, tensor, part, ranks: int):
    """Return a function that reduces and copies as many bytes as the collective needs of a rank."""

    operand, parts = torch.zeros_like(part), tensor.chunk(ranks)

    def reduced() -> None:
        for copied in parts[1:]:
            parts[0].add_(operand)
            copied.copy_(operand)

    def scattered() -> None:  # the input is not changed
        torch.add(parts[0], operand, out=part)
        for _ in parts[2:]:
            part.add_(operand)

    def gathered() -> None:
        for copied in parts[1:] if name == "all_gather in place" else parts:
            copied.copy_(operand)

    return {"all_reduce": reduced, "reduce_scatter": scattered}.get(name, gathered)


def own_part(tensor):
    """Return this rank's part of a tensor."""

    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def idle_group():
    """Return a group of torch's backend `fake`, which does nothing."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401

    return dist.new_group(backend="fake")


def raw_mpi():
    """Return a communicator of the MPI that oneCCL started in this process, or None."""
    if importlib.util.find_spec("mpi4py") is None:
        return None
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup() if MPI.Is_initialized() else None


def mpi_cases(comm, name: str, tensor, part) -> dict:
    """Return the same operation on MPI itself if it supports the type; all_gather treats data as bytes."""

    gathers = name.startswith("all_gather")
    if comm is None or (not gathers and tensor.dtype != torch.float32):
        return {}
    from mpi4py import MPI

    full, piece = (data.view(torch.uint8 if gathers else data.dtype).numpy() for data in (tensor, part))
    calls = {
        "all_reduce": partial(comm.Allreduce, MPI.IN_PLACE, full),
        "reduce_scatter": partial(comm.Reduce_scatter_block, full, piece),
        "all_gather": partial(comm.Allgather, piece, full),
        "all_gather in place": partial(comm.Allgather, MPI.IN_PLACE, full),
    }
    return {"mpi": calls[name]}


def placed_case(group, name: str, work, tensor, part) -> dict:
    """Return the same operation on tensors that the backend allocated in shared memory, like DDP's buckets."""

    backend = group._get_backend(torch.device("cpu"))
    if not backend.supports_tensor_alloc(torch.device("cpu")):
        return {}

    def placed(like):
        shared = backend.allocate_tensor(like.numel(), dtype=like.dtype, device=like.device)
        return shared.copy_(like)

    full = placed(tensor)
    piece = own_part(full) if name == "all_gather in place" else placed(part)
    return {"placed": partial(work, full, piece, group)}


def works() -> dict:
    """Return each collective as a function of a tensor, a rank's part of it, and a group."""

    return {
        "all_reduce": lambda tensor, part, group: dist.all_reduce(tensor, group=group),
        "reduce_scatter": lambda tensor, part, group: dist.reduce_scatter_tensor(part, tensor, group=group),
        "all_gather": lambda tensor, part, group: dist.all_gather_into_tensor(tensor, part, group=group),
    }


def collective_rows(groups: dict, options: argparse.Namespace) -> list[dict]:

    rows = []
    ranks, mpi, idle = dist.get_world_size(), raw_mpi(), idle_group()
    calls = works()
    calls["all_gather in place"] = calls["all_gather"]
    calls = {name: work for name, work in calls.items() if options.only in ("", name)}
    sizes = [size for size in SIZES if size <= options.max_mb * MB]
    for (name, work), dtype, size in itertools.product(calls.items(), (torch.float32, torch.bfloat16), sizes):
        part = torch.zeros(max(1, size // dtype.itemsize // ranks), dtype=dtype)
        tensor = torch.zeros(part.numel() * ranks, dtype=dtype)
        part = own_part(tensor) if name == "all_gather in place" else part
        inner = 100 if size <= 64 * KB else 10 if size <= 4 * MB else 1
        cases = {kind: partial(work, tensor, part, group) for kind, group in groups.items()}
        cases |= placed_case(groups["ccl"], name, work, tensor, part)
        cases |= mpi_cases(mpi, name, tensor, part)
        cases["limit"] = limit_of(name, tensor, part, ranks)
        if name == "all_reduce":  # other operations of the backend `fake` copy
            cases["torch"] = partial(work, tensor, part, idle)
        kind = str(dtype).removeprefix("torch.")
        times = time_turns(cases, options.repeat, inner)
        targets = targets_of(name, size, options.busy)
        rows.append(row(f"{name} {kind} {size_text(size)}", times, *targets))
    return rows


def encoder(width: int, layers: int, heads: int, vocabulary: int):
    from torch import nn

    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(vocabulary, width), nn.TransformerEncoder(layer, layers), nn.Linear(width, 2))


def ddp_steps(groups: dict, repeat: int, model_name: str = "") -> list[dict]:
    from torch.nn.parallel import DistributedDataParallel

    rows = []
    for name in [model_name] if model_name else MODELS:
        width, layers, heads, vocabulary, batch, sequence = MODELS[name]
        models = {}
        for kind, group in groups.items():
            torch.manual_seed(1)
            ddp = DistributedDataParallel(
                encoder(width, layers, heads, vocabulary), process_group=group, gradient_as_bucket_view=True
            )
            models[kind] = ddp, torch.optim.SGD(ddp.parameters(), lr=0.01)
        tokens = torch.randint(0, vocabulary, (batch, sequence))

        def step(model, tokens=tokens) -> None:
            ddp, optimizer = model
            with torch.autocast("cpu", torch.bfloat16):
                loss = ddp(tokens).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        cases = {kind: partial(step, model) for kind, model in models.items()}
        times = time_turns(cases, max(5, repeat // 2), 1)
        rows.append(row(f"DDP step, {name}", times, STEP_TARGET))
    return rows


def print_table(rows: list[dict]) -> None:
    print(
        f"{'':36}{'ccl':>12}{'gloo':>12}{'ratio':>8}{'target':>8}"
        f"{'ccl/mpi':>11}{'ccl/limit':>11}{'ccl/torch':>11}{'placed/ccl':>11}{'placed/limit':>13}"
    )
    for result in rows:
        ratios = "".join(
            f"{result['ccl_s'] / result[key]:11.2f}" if key in result else " " * 11
            for key in ("mpi_s", "limit_s", "torch_s")
        )
        if "placed_s" in result:
            ratios += f"{result['placed_s'] / result['ccl_s']:11.2f}{result['placed_s'] / result['limit_s']:13.2f}"
        print(
            f"{result['what']:36}{result['ccl_s'] * 1e3:9.3f} ms{result['gloo_s'] * 1e3:9.3f} ms"
            f"{result['ratio']:8.3f}{result['target']:8.2f}{ratios}{'' if result['met'] else '  missed'}"
        )


def start_groups() -> tuple[int, int, dict]:
    """Start the process groups; return this process's rank, the number of ranks, and the groups by backend."""
    import oneccl_bindings_for_pytorch  # noqa: F401

    torch.set_num_threads(1)
    rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    dist.init_process_group("ccl", rank=rank, world_size=size)
    return rank, size, {"ccl": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def main() -> int:
    options = arguments()
    if not options.inside:
        with busy_cores() if options.busy else contextlib.nullcontext():
            return start_ranks(options.ranks)
    machine = describe_machine()
    pin_to_one_core()
    rank, size, groups = start_groups()

    rows = collective_rows(groups, options)
    if not (options.no_models or options.only):
        rows += ddp_steps(groups, options.repeat)
    if rank == 0:
        busy = ", a busy process on each core" if options.busy else ""
        print(f"{machine}, {size} ranks{busy}; medians of {options.repeat}")
        print_table(rows)
        if options.json:
            about = {"machine": machine, "ranks": size, "torch": torch.__version__}
            about |= {"repeat": options.repeat, "busy": options.busy}
            options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
