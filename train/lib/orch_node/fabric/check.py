"""Check which fabrics carry traffic between the nodes: `node.py check-fabric`, on one of the nodes.

Reads a request from standard input and prints one JSON object, whose `nodes` are: node -> fabric ->
result. Every fabric is checked between the nodes that have devices for it, if at least two have,
with as many devices of each node as all have, and then with one. If several devices work, TCP is
measured as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orch_node.protocol import fabrics, values
from orch_node.protocol.fabrics import RDMA, TCP, Device, Proof

MAX_REASON_LENGTH = 300
RANK_PROGRAM = "ping-pong"
ERROR_LINE = re.compile(r"failed|Error|ERROR")
TIMED_OUT = (124, 128 + signal.SIGKILL, -signal.SIGKILL)  # exit codes of timeout(1)


class Member(NamedTuple):
    """A node, with its facts."""

    name: str
    address: str  # where the other nodes reach it
    fabrics: dict[str, str]  # fabric -> what the node lacks for it, or ""
    devices: tuple[Device, ...]


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
        return [Member(*facts) for facts in zip(self.names, self.addresses, self.fabrics, self.devices)]


def main(argv: list[str]) -> int:
    """Read the request, check the fabrics, and print the results."""
    request = values.parse(Request, sys.stdin.read(), "the request")
    print(json.dumps({"key": request.key, "nodes": values.record(check_fabrics(request))}), flush=True)
    return 0


def check_fabrics(request: Request) -> dict[str, dict[str, Proof]]:
    """Return the results by node and fabric."""
    results: dict[str, dict[str, Proof]] = {member.name: {} for member in request.members}
    for fabric in RDMA:
        members = [
            member
            for member in request.members
            if member.fabrics.get(fabric) == "" and fabrics.rails(fabric, member.devices)
        ]
        if len(members) > 1:
            common = min(len(fabrics.rails(fabric, member.devices)) for member in members)
            for rails in sorted({common, 1}, reverse=True):  # with one device of each node only if all of them fail
                result = check_fabric(request, fabric, members, rails)
                if result.together:
                    break
            for member in members:
                results[member.name][fabric] = result
    connected = [member for member in request.members if any(proof.together for proof in results[member.name].values())]
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
    return values.read(Proof, {"together": together, "rails": rails, **last_json_object(output)}, "rank 0")


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


def last_json_object(output: str) -> dict[str, object]:
    """Return the last JSON object that rank 0 has printed.

    Raises:
        ProtocolError: if there is none.
    """
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return values.check(values.loads(lines[-1] if lines else "", "rank 0"), "rank 0", dict)
