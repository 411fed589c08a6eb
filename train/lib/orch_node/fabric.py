"""Check which fabrics carry traffic between the nodes, with the stack itself: `node.py check-fabric`, on one of them.

Reads a request from standard input and prints one JSON object, whose `nodes` are: node -> fabric ->
result. Every fabric is checked between the nodes that have devices for it, if at least two have,
with as many devices of each node as all have, and then with one. If several devices work, TCP is
measured as well.

`mpiexec.hydra -n N node.py ping-pong BACKEND FABRIC` runs the ranks of a check, one for each device. All ranks reduce
and send to each other, so that each device has communicated with every other one; then the first ranks of the first two
nodes play ping-pong. Rank 0 prints one JSON object. The ranks use the standard library and torch only.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orch_node import verify
from orch_node.protocol import fabrics, values
from orch_node.protocol.fabrics import RDMA, TCP, Device, Proof
from orch_node.standalone import facts

MAX_REASON_LENGTH = 300
RANK_PROGRAM = "ping-pong"
ERROR_LINE = re.compile(r"failed|Error|ERROR")
SMALL, LARGE = 2, 1 << 20  # float32 elements: 8 bytes, and 4 MiB, the size of a gradient bucket
WARM_UP_ROUNDS, TIMED_ROUNDS = 5, 40
TIMED_OUT = (124, 128 + signal.SIGKILL, -signal.SIGKILL)  # exit codes of timeout(1)


class Member(NamedTuple):
    """A node, with its facts."""

    name: str
    address: str  # where the other nodes reach it
    fabrics: dict[str, str]  # fabric -> what the node lacks for it, or ""
    devices: tuple[Device, ...]

    def rails(self, fabric: str) -> tuple[Device, ...]:
        """Return the devices that carry a fabric, if the node lacks nothing for it."""
        return fabrics.rails(fabric, self.devices) if self.fabrics.get(fabric) == "" else ()


@dataclass(frozen=True)
class Request:
    """The nodes to check, in the same order in each list, and how."""

    launch: tuple[str, ...]  # mpiexec and its options
    program: tuple[str, ...]  # Python and node.py
    backend: str
    key: str  # identifies the hardware and software of all nodes
    seconds: float  # time limit of one check
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    fabrics: tuple[dict[str, str], ...]
    devices: tuple[tuple[Device, ...], ...]

    @property
    def members(self) -> list[Member]:
        return [Member(*node) for node in zip(self.names, self.addresses, self.fabrics, self.devices)]


def main(argv: list[str]) -> int:
    """Read the request, check the fabrics, and print the results."""
    request = values.parse(Request, sys.stdin.read(), "the request")
    print(json.dumps({"key": request.key, "nodes": values.record(check_fabrics(request))}), flush=True)
    return 0


def check_fabrics(request: Request) -> dict[str, dict[str, Proof]]:
    """Return the results by node and fabric."""
    nodes = request.members
    results: dict[str, dict[str, Proof]] = {node.name: {} for node in nodes}
    for fabric in RDMA:
        members = [node for node in nodes if node.rails(fabric)]
        if len(members) > 1:
            common = min(len(member.rails(fabric)) for member in members)
            for rails in sorted({common, 1}, reverse=True):  # with one device of each node only if all of them fail
                result = check_fabric(request, fabric, members, rails)
                if result.together:
                    break
            for member in members:
                results[member.name][fabric] = result
    connected = [node for node in nodes if any(proof.together for proof in results[node.name].values())]
    if len(connected) > 1:
        result = check_fabric(request, TCP, connected, 1)
        for member in connected:
            results[member.name][TCP] = result
    return results


def check_fabric(request: Request, fabric: str, members: Sequence[Member], rails: int) -> Proof:
    """Run the ping-pong between these nodes, with so many devices of each."""
    hosts = ",".join(member.address for member in members)
    count = str(rails * len(members))
    command = (
        *(*request.launch, "-hosts", hosts, "-n", count, "-ppn", str(rails)),
        *(*request.program, RANK_PROGRAM, request.backend, fabric),
    )
    variables = {"MASTER_ADDR": members[0].address, "FI_PROVIDER": fabric}
    code, output = run_with_timeout(command, variables, request.seconds)
    if code != 0:
        return Proof(together="", rails=rails, failed=failure_reason(output, code))
    names = " ".join(member.name for member in members)
    together = hashlib.sha256(f"{request.key} {fabric} {names}".encode()).hexdigest()
    lines = [line for line in output.splitlines() if line.startswith("{")]
    measured = values.check(values.loads(lines[-1] if lines else "", "rank 0"), "rank 0", dict)
    return values.read(Proof, {"together": together, "rails": rails, **measured}, "rank 0")


def run_with_timeout(command: Sequence[str], variables: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Run a command; return its exit code and its output. At the SIGTERM of timeout(1), mpiexec ends all ranks."""
    argv = ("timeout", "-k", "10", str(seconds), *command)
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        environment = {**os.environ, **variables}
        done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        file.seek(0)
        return done.returncode, file.read()


def failure_reason(output: str, code: int) -> str:
    """Return the last line that names an error, in printable characters."""
    if code in TIMED_OUT:
        return "timed out"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    error_lines = [line for line in lines if ERROR_LINE.search(line)]
    reason = (error_lines or lines or [f"exit code {code}"])[-1]
    return "".join(letter if letter.isprintable() else "?" for letter in reason)[:MAX_REASON_LENGTH]


def main_of_rank(argv: list[str]) -> int:
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
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend, timeout=verify.TIMEOUT)
    verify.add_up(rank, range(ranks))
    # Each rank sends a number to every other one.
    sent = torch.arange(ranks, dtype=torch.float32) + 1000.0 * rank
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    wrong = (received != torch.arange(ranks) * 1000.0 + rank).nonzero().flatten().tolist()
    if wrong:
        raise ArithmeticError(f"wrong numbers from ranks {wrong}")
    small, large = (ping_pong_seconds(rank, ranks_per_node, elements) for elements in (SMALL, LARGE))
    dist.barrier()
    dist.destroy_process_group()
    return {"gbit": 4 * LARGE * 8 / large / 1e9, "microseconds": small * 1e6}


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
