"""One rank of a trial: `mpiexec.hydra -n N node.py ping-pong BACKEND FABRIC`, one for each device.

All ranks add up and send to one another, so that each device has talked to each other one; then the
first ranks of the first two nodes play ping-pong. Rank 0 prints one JSON object. Standard library
and torch only.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from orch_node import verify
from orch_node.protocol import fabrics, values
from orch_node.protocol.fabrics import Device
from orch_node.standalone import facts

SMALL, LARGE = 2, 1 << 20  # float32: 8 bytes, and 4 MiB, as large as a bucket of gradients is
WARM_UP, TIMES = 5, 40


def main(argv: list[str]) -> int:
    backend, fabric = argv
    rank, ranks = verify.take_numbers()
    per_node = int(os.environ.get("MPI_LOCALNRANKS", ranks))
    try:
        hold_to(fabric, int(os.environ.get("MPI_LOCALRANKID", rank)), per_node)
        report = play(backend, rank, ranks, per_node)
    except Exception as error:  # whatever it is, it is this fabric's answer
        print(f"{socket.gethostname()} rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    if rank == 0:
        print(json.dumps(report), flush=True)
    return 0


def hold_to(fabric: str, local_rank: int, per_node: int) -> None:
    """To the interface that reaches rank 0, the fabric, and one of its devices here."""
    interface = verify.hold_to_interface()
    known = [values.read(Device, one, "a device") for one in facts.rdma_devices()]
    devices = fabrics.rails(fabric, known)[:per_node]
    os.environ.update(fabrics.node_variables(fabric, interface, devices))
    own = [one.name for one in devices[local_rank : local_rank + 1]]
    os.environ.update(fabrics.rank_variables(fabric, own, "mpi"))


def play(backend: str, rank: int, ranks: int, per_node: int) -> dict[str, float]:
    """Gbit/s of large messages and microseconds of small ones, one way. Raises on wrong data."""
    verify.load(backend)
    import torch.distributed as dist

    dist.init_process_group(backend, timeout=verify.TIMEOUT)
    verify.add_up(rank, range(ranks))
    everybody(rank, ranks)
    seconds = [exchange(rank, per_node, elements) for elements in (SMALL, LARGE)]
    dist.barrier()
    dist.destroy_process_group()
    small, large = seconds
    return {"gbit": 4 * LARGE * 8 / large / 1e9, "microseconds": small * 1e6}


def everybody(rank: int, ranks: int) -> None:
    """Each rank sends each other one a number."""
    import torch
    import torch.distributed as dist

    sent = torch.arange(ranks, dtype=torch.float32) + 1000.0 * rank
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    wrong = (got != torch.arange(ranks) * 1000.0 + rank).nonzero().flatten().tolist()
    if wrong:
        raise ArithmeticError(f"wrong numbers from ranks {wrong}")


def exchange(rank: int, peer: int, elements: int) -> float:
    """Seconds that a message takes between rank 0 and the peer, one way; 0 to all others."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    if rank not in (0, peer):
        return 1.0
    message = torch.full((elements,), 1.0)
    other = peer - rank
    for time_ in range(WARM_UP + TIMES):
        if time_ == WARM_UP:
            began = time.perf_counter()
        if rank == 0:
            dist.send(message, other)
        dist.recv(message, other)
        if rank == peer:
            dist.send(message + 1.0, other)
    taken = (time.perf_counter() - began) / (2 * TIMES)
    if rank == 0 and not bool((message == 1.0 + WARM_UP + TIMES).all()):
        raise ArithmeticError("a message came back wrong")
    return taken
