"""What a rank makes sure of before it trains: it is where the plan has it, with what it planned."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import tempfile
from pathlib import Path

from orch_node.protocol.container import ContainerSpec
from orch_node.protocol.layout import NodeEntry, Placement

# By whether the node's facts were recorded by `orch provision`, or seen when the run was planned.
LOOK_AGAIN = {
    True: "Run `orch provision` to record the node as it is now.",
    False: "It was so when the run was planned: start it again.",
}


class RankError(Exception):
    """A reason not to start training, in one sentence."""


def check_placement(placement: Placement) -> list[int]:
    """The CPUs of this process, which must be those of the plan.

    Read before torch is imported: an OpenMP runtime may narrow the main thread further.
    """
    planned, actual = sorted(placement.cpus), allowed_cpus()
    if planned and planned != actual:
        raise RankError(f"rank {placement.rank} should run on CPUs {planned}, but /proc/self/status allows {actual}.")
    return actual


def check_node(node: NodeEntry) -> None:
    """This is the planned node, and its interface still has the planned address."""
    host, cure = socket.gethostname(), LOOK_AGAIN[node.recorded]
    if host != node.host:
        raise RankError(
            f"this rank is planned for {node.name}, whose host name is {node.host}, but runs on {host}. {cure}"
        )
    if node.interface is None or node.address is None:
        return
    present = [name for _, name in socket.if_nameindex()]
    if node.interface not in present:
        raise RankError(f"{node.name} has no interface {node.interface}, only {', '.join(present)}. " + cure)
    family = socket.AF_INET6 if ":" in node.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((node.address, 0))
        except OSError as error:
            raise RankError(
                f"{node.name} does not have the address {node.address} any more ({error.strerror}). {cure}"
            ) from None


def check_torch(node: NodeEntry, version: str, spec: ContainerSpec | None) -> None:
    """Another version on one node can hang the others, or train wrongly. Builds of one version
    train together; where nodes were seen to have different ones, the plan tells it."""
    planned = node.torch
    if not planned or public(planned) == public(version):
        return
    where = f"image {spec.image}" if spec else node.name
    raise RankError(f"{where} has torch {version}, and was planned with {planned}. To repair it: {repair(node, spec)}.")


def public(version: str) -> str:
    """A version without its build (PEP 440's local part): 2.13.0 of 2.13.0+cu130."""
    return version.partition("+")[0]


def repair(node: NodeEntry, spec: ContainerSpec | None) -> str:
    """What gives the place of this rank the stack, whole."""
    return "`orch image build`" if spec else node.repair


def check_environment(planned: dict[str, str]) -> None:
    """What the plan says of the environment is what this process has."""
    for name, value in planned.items():
        # Where to meet is proven by meeting there, and may be another place at another attempt;
        # what is preloaded, maybe by a link, is looked for in the memory.
        proven = name == "LD_PRELOAD" or name.startswith("MASTER_")
        if not proven and os.environ.get(name) != value:
            raise RankError(f"the variable {name} is {os.environ.get(name)!r}, and was planned as {value!r}.")


def allowed_cpus() -> list[int]:
    """The CPUs that the kernel lets this process use, as /proc/self/status lists them."""
    text = Path("/proc/self/status").read_text()
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", text, re.MULTILINE)
    cpus: list[int] = []
    for part in match.group(1).split(",") if match else []:
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def check_preload(planned: str, cure: str) -> None:
    """Every library of LD_PRELOAD is mapped; the loader only warns about one it cannot find."""
    mapped = Path("/proc/self/maps").read_text(errors="surrogateescape")
    for library in (*planned.split(":"), *os.environ.get("LD_PRELOAD", "").split(":")):
        if library and os.path.realpath(library) not in mapped:
            raise RankError(
                f"LD_PRELOAD names {library}, but it is not loaded: {why_not_loaded(library)}. To repair it: {cure}."
            )


def why_not_loaded(library: str) -> str:
    if not os.path.exists(library):
        return "there is no such file"
    if any(sign in library for sign in " :$"):
        return (
            "the loader takes paths with a space, a colon or a dollar apart, and no folder in "
            f"{tempfile.gettempdir()} could be made for a link to it"
        )
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return "the loader left it out"
