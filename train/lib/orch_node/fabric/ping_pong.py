"""Run one rank of a fabric check: `mpiexec.hydra -n N node.py ping-pong BACKEND FABRIC`.

One rank runs for each device. All ranks reduce and send to each other, so that each device has
communicated with every other one; then the first ranks of the first two nodes play ping-pong. Rank
0 prints one JSON object. Uses the standard library and torch only.
"""

from __future__ import annotations

import functools
import os
import time

from orch_node import verify
from orch_node.protocol import fabrics, values
from orch_node.protocol.fabrics import Device
from orch_node.standalone import facts

SMALL, LARGE = 2, 1 << 20  # float32 elements: 8 bytes, and 4 MiB, the size of a gradient bucket
WARM_UP_ROUNDS, TIMED_ROUNDS = 5, 40


def main(argv: list[str]) -> int:
    """Run this rank, and return 1 if the fabric does not work."""
    backend, fabric = argv
    return verify.run_rank(functools.partial(measure, backend, fabric))


def select_device(fabric: str, local_rank: int, ranks_per_node: int) -> None:
    """Set the variables for the interface that reaches rank 0, the fabric, and one of its devices."""
    interface = verify.hold_to_interface()
    known_devices = [values.read(Device, record, "a device") for record in facts.rdma_devices()]
    devices = fabrics.rails(fabric, known_devices)[:ranks_per_node]
    os.environ.update(fabrics.node_variables(fabric, interface, devices))
    names = [device.name for device in devices[local_rank : local_rank + 1]]
    os.environ.update(fabrics.rank_variables(fabric, names, "mpi"))


def measure(backend: str, fabric: str, rank: int, ranks: int, ranks_per_node: int) -> dict[str, float]:
    """Check the communication of all ranks, and measure one pair of them.

    Returns:
        The bandwidth of large messages in Gbit/s, and the latency of small ones in microseconds.

    Raises:
        ArithmeticError: if data arrive wrong.
    """
    select_device(fabric, int(os.environ.get("MPI_LOCALRANKID", rank)), ranks_per_node)
    verify.load(backend)
    import torch.distributed as dist

    dist.init_process_group(backend, timeout=verify.TIMEOUT)
    verify.add_up(rank, range(ranks))
    check_all_pairs(rank, ranks)
    small, large = (ping_pong_seconds(rank, ranks_per_node, elements) for elements in (SMALL, LARGE))
    dist.barrier()
    dist.destroy_process_group()
    return {"gbit": 4 * LARGE * 8 / large / 1e9, "microseconds": small * 1e6}


def check_all_pairs(rank: int, ranks: int) -> None:
    """Let each rank send a number to every other one, and check the numbers."""
    import torch
    import torch.distributed as dist

    sent = torch.arange(ranks, dtype=torch.float32) + 1000.0 * rank
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    wrong = (received != torch.arange(ranks) * 1000.0 + rank).nonzero().flatten().tolist()
    if wrong:
        raise ArithmeticError(f"wrong numbers from ranks {wrong}")


def ping_pong_seconds(rank: int, peer: int, elements: int) -> float:
    """Return the seconds that a message takes one way between rank 0 and the peer.

    Other ranks only take part in the barrier, and return 1.
    """
    import torch
    import torch.distributed as dist

    dist.barrier()
    if rank not in (0, peer):
        return 1.0
    message = torch.full((elements,), 1.0)
    partner = peer - rank
    for number in range(WARM_UP_ROUNDS + TIMED_ROUNDS):
        if number == WARM_UP_ROUNDS:
            began = time.perf_counter()
        if rank == 0:
            dist.send(message, partner)
        dist.recv(message, partner)
        if rank == peer:
            dist.send(message + 1.0, partner)
    seconds = (time.perf_counter() - began) / (2 * TIMED_ROUNDS)
    if rank == 0 and not bool((message == 1.0 + WARM_UP_ROUNDS + TIMED_ROUNDS).all()):
        raise ArithmeticError("a message came back wrong")
    return seconds
