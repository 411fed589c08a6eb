"""Verify that this node can train: `mpiexec.hydra -n N node.py verify BACKEND`, once per rank.

Import the stack, check a BF16 matrix product against float32 once per node, and run an all-reduce
over all ranks and over those of each node. The exit code is 0 if all of that works. Only the standard
library and torch are needed.
"""

from __future__ import annotations

import compileall
import contextlib
import datetime
import fcntl
import functools
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from orch_node.standalone import facts

LIB = Path(__file__).resolve().parents[1]
TIMEOUT = datetime.timedelta(seconds=60)
# BF16 has 8 bits of mantissa. Sums of 512 products accumulate in float32 and are rounded once, so
# the error is about 2^-8 of the largest element.
SIZE = 512
TOLERANCE = 2.0**-7
ELEMENTS = 1 << 16


def main(argv: list[str]) -> int:
    """Verify this node as a rank and return the exit code."""
    (backend,) = argv
    return run_rank(functools.partial(check, backend))


def run_rank(measure: Callable[[int, int, int], Mapping[str, object] | None]) -> int:
    """Run a function as a rank, and let rank 0 print the report, if there is one; return the exit code.

    Args:
        measure: returns the report, from the rank, the number of ranks and that of the ranks of this node.
    """
    # The numbers come from hydra, or else from the environment.
    os.environ["RANK"] = os.environ.get("PMI_RANK", os.environ.get("RANK", "0"))
    os.environ["WORLD_SIZE"] = os.environ.get("PMI_SIZE", os.environ.get("WORLD_SIZE", "1"))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        report = measure(rank, ranks, int(os.environ.get("MPI_LOCALNRANKS", ranks)))
    except Exception as error:  # any error is the result of this node
        print(f"{socket.gethostname()} rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    if rank == 0 and report:
        print(json.dumps(report), flush=True)
    return 0


def hold_to_interface() -> str:
    """Restrict gloo, oneCCL and libfabric to the interface that reaches rank 0, and return its name."""
    local_address = facts.address_towards(os.environ["MASTER_ADDR"])
    name = next(name for name, addresses in facts.interfaces().items() if local_address in addresses)
    os.environ.update(dict.fromkeys(("GLOO_SOCKET_IFNAME", "CCL_KVS_IFACE", "FI_TCP_IFACE"), name))
    return name


def check(backend: str, rank: int, ranks: int, per_node: int) -> None:
    """Run all checks of this rank, which report nothing."""
    hold_to_interface()
    load(backend)
    if rank % per_node == 0:
        check_node()
    all_reduce(backend, rank, ranks, per_node)


def load(backend: str) -> None:
    """Import torch and, for ccl, the bindings, which check that torch matches.

    The programs of orch are compiled here, too: the first run would spend 0.5 s of each node on it.
    """
    with open(__file__, "rb") as lock:  # the first import compiles the bytecode of torch for the other ranks
        with contextlib.suppress(OSError):  # without locks, every rank compiles
            fcntl.flock(lock, fcntl.LOCK_EX)
        import torch  # noqa: F401

        compileall.compile_dir(LIB, quiet=2)  # fails without consequences in a folder of another user
        if backend == "ccl":
            try:
                import oneccl_bindings_for_pytorch  # noqa: F401
            except ImportError:
                import torch_ccl  # noqa: F401  # the name of version 1.11 and older


def check_node() -> None:
    """Check what one rank checks for its whole node: the recipes' packages, and BF16 against float32.

    Raises:
        ArithmeticError: if a BF16 matrix product is wrong.
    """
    import torch
    import transformers  # noqa: F401

    generator = torch.Generator().manual_seed(0)
    first = torch.randn(SIZE, SIZE, generator=generator).bfloat16()
    second = torch.randn(SIZE, SIZE, generator=generator).bfloat16()
    exact = first.float() @ second.float()
    error = float(((first @ second).float() - exact).abs().max() / exact.abs().max())
    if error > TOLERANCE:
        raise ArithmeticError(f"BF16 matrix product is off by {error:.3g}")


def all_reduce(backend: str, rank: int, ranks: int, per_node: int) -> None:
    """Run an all-reduce over all ranks, then over those of each node.

    Raises:
        ArithmeticError: if a sum is wrong.
    """
    import torch.distributed as dist

    dist.init_process_group(backend, timeout=TIMEOUT)
    add_up(rank, range(ranks))
    if per_node < ranks:
        nodes = [range(start, start + per_node) for start in range(0, ranks, per_node)]
        # Every rank must create every group, including those without it.
        groups = [dist.new_group(list(members)) for members in nodes]
        add_up(rank, nodes[rank // per_node], groups[rank // per_node])
    dist.barrier()
    dist.destroy_process_group()


def add_up(rank: int, members: range, group: object = None) -> None:
    """Run an all-reduce and check its sums.

    Raises:
        ArithmeticError: if a sum is wrong.
    """
    import torch
    import torch.distributed as dist

    tensor = torch.full((ELEMENTS,), float(rank + 1))
    dist.all_reduce(tensor, group=group)
    wrong = int((tensor != sum(member + 1 for member in members)).sum())
    if wrong:
        raise ArithmeticError(
            f"all-reduce over ranks {members.start} to {members.stop - 1}: {wrong} of {ELEMENTS} sums are wrong"
        )
