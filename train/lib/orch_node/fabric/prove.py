"""Which fabrics carry traffic between the nodes: `node.py prove`, on one of them, with a request on
its standard input; prints one JSON object, whose `nodes` are: node -> fabric -> what came of it.

Every fabric for which two nodes or more have devices is tried between those that have them, with as
many devices of each as all have, and then with one. Where that was of use, TCP is measured, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orch_node.protocol import fabrics, values
from orch_node.protocol.fabrics import RDMA, TCP, Device, Proof

LONGEST = 300  # letters of a reason
RANK_PROGRAM = "ping-pong"
TELLING = re.compile(r"failed|Error|ERROR")
LISTS = ("names", "addresses", "fabrics", "devices")


@dataclass(frozen=True)
class Member:
    """A node, with its facts. `address`: where the others reach it."""

    name: str
    address: str
    fabrics: dict[str, str]
    devices: tuple[Device, ...]


@dataclass(frozen=True)
class Request:
    """`launch`: mpiexec and how it starts its proxies; `program`: Python and node.py; `key`: names
    what all nodes are and have now; `seconds`: how long one trial may take."""

    launch: tuple[str, ...]
    program: tuple[str, ...]
    backend: str
    key: str
    seconds: float
    members: tuple[Member, ...]


def main(argv: list[str]) -> int:
    request = request_of(sys.stdin.read())
    print(json.dumps({"key": request.key, "nodes": values.record(prove(request))}), flush=True)
    return 0


def request_of(text: str) -> Request:
    """From JSON, in which names, addresses, fabrics and devices are lists of the same order.

    Raises ProtocolError.
    """
    said = values.an_object(values.loads(text, "the request"), "the request")
    lists = zip(*(said.pop(name) for name in LISTS), strict=True)
    members = [
        {"name": name, "address": address, "fabrics": missing, "devices": devices}
        for name, address, missing, devices in lists
    ]
    return values.read(Request, {**said, "members": members}, "the request")


def prove(request: Request) -> dict[str, dict[str, Proof]]:
    """Node -> fabric -> proof."""
    found: dict[str, dict[str, Proof]] = {member.name: {} for member in request.members}
    for fabric in RDMA:
        members = having(fabric, request.members)
        if len(members) > 1:
            note(found, fabric, members, try_rails(request, fabric, members))
    equipped = [one for one in request.members if any(proof.rails for proof in good(found[one.name]))]
    if len(equipped) > 1:
        note(found, TCP, equipped, trial(request, TCP, equipped, 1))
    return found


def good(proofs: Mapping[str, Proof]) -> list[Proof]:
    return [proof for proof in proofs.values() if proof.together]


def having(fabric: str, members: Sequence[Member]) -> list[Member]:
    """Those that lack nothing for it, and have a device."""
    return [one for one in members if one.fabrics.get(fabric) == "" and fabrics.rails(fabric, one.devices)]


def note(found: dict[str, dict[str, Proof]], fabric: str, members: Sequence[Member], proof: Proof) -> None:
    for member in members:
        found[member.name][fabric] = proof


def try_rails(request: Request, fabric: str, members: Sequence[Member]) -> Proof:
    """With all devices that every node has, or else with one; the reason of the latter failing."""
    most = min(len(fabrics.rails(fabric, one.devices)) for one in members)
    proof = trial(request, fabric, members, most)
    if proof.together or most == 1:
        return proof
    return trial(request, fabric, members, 1)


def trial(request: Request, fabric: str, members: Sequence[Member], rails: int) -> Proof:
    hosts = ",".join(one.address for one in members)
    count = str(rails * len(members))
    command = (
        *(*request.launch, "-hosts", hosts, "-n", count, "-ppn", str(rails)),
        *(*request.program, RANK_PROGRAM, request.backend, fabric),
    )
    given = {"MASTER_ADDR": members[0].address, "FI_PROVIDER": fabric}
    code, out, err = ended(command, given, request.seconds)
    if code != 0:
        return Proof(together="", rails=rails, failed=reason(err or out, code))
    names = " ".join(one.name for one in members)
    together = hashlib.sha256(f"{request.key} {fabric} {names}".encode()).hexdigest()
    measured = values.parse(Proof, json.dumps({"together": together, **last_json(out)}), "rank 0")
    return replace(measured, rails=rails)


def ended(command: Sequence[str], given: Mapping[str, str], seconds: float) -> tuple[int | None, str, str]:
    """Exit code, output and errors; None for one that took too long, of which nothing is left."""
    with subprocess.Popen(
        command,
        env={**os.environ, **given},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
            return process.returncode, out, err
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)  # mpiexec ends its ranks on all nodes
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return None, "", ""


def reason(said: str, code: int | None) -> str:
    """The last line that names an error, in letters that a terminal may get."""
    if code is None:
        return "no answer in time"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if TELLING.search(line)]
    chosen = (telling or lines or [f"exit code {code}"])[-1]
    return "".join(letter if letter.isprintable() else "?" for letter in chosen)[:LONGEST]


def last_json(out: str) -> dict[str, object]:
    """What rank 0 has printed last. Raises ProtocolError."""
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return values.an_object(values.loads(lines[-1] if lines else "", "rank 0"), "rank 0")
