"""What a rank makes sure of before it trains: it is where the plan has it, with what it planned."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any


class RankError(Exception):
    """A reason not to start training, in one sentence."""


def check_place(place: dict[str, Any]) -> list[int]:
    """The CPUs of this process, which must be those of the plan.

    Read before torch is imported: an OpenMP runtime may narrow the main thread further.
    """
    planned, actual = sorted(place["cpus"]), allowed_cpus()
    if planned and planned != actual:
        raise RankError(
            f"rank {place['rank']} should run on CPUs {planned}, but /proc/self/status "
            f"allows {actual}."
        )
    return actual


def check_node(node: dict[str, Any]) -> None:
    """This is the planned node, and its interface still has the planned address."""
    host, cure = socket.gethostname(), "Run `orch provision` to record the node as it is now."
    if host != node["host"]:
        raise RankError(
            f"this rank is planned for {node['name']}, whose host name is {node['host']}, but "
            f"runs on {host}. {cure}"
        )
    if node["interface"] is None:
        return
    present = [name for _, name in socket.if_nameindex()]
    if node["interface"] not in present:
        raise RankError(
            f"{node['name']} has no interface {node['interface']}, only {', '.join(present)}. "
            + cure
        )
    family = socket.AF_INET6 if ":" in node["address"] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((node["address"], 0))
        except OSError as error:
            raise RankError(
                f"{node['name']} does not have the address {node['address']} any more "
                f"({error.strerror}). {cure}"
            ) from None


def check_torch(node: dict[str, Any], version: str, spec: dict[str, Any] | None) -> None:
    """Another version on one node can hang the others, or train wrongly. An image may well have
    another build of the same version."""
    planned = node.get("torch")
    if not planned or planned == version:
        return
    if spec is None:
        raise RankError(
            f"{node['name']} has torch {version}, and was planned with {planned}. "
            "Run `orch provision`."
        )
    if planned.partition("+")[0] != version.partition("+")[0]:
        raise RankError(
            f"image {spec['image']} has torch {version}, and was planned with {planned}. "
            "`orch image build` makes one with the stack's."
        )


def check_environment(planned: dict[str, str]) -> None:
    """What the plan says of the environment is what this process has."""
    for name, value in planned.items():
        # Where to meet is proven by meeting there, and may be another place at another attempt.
        if not name.startswith("MASTER_") and os.environ.get(name) != value:
            raise RankError(
                f"the variable {name} is {os.environ.get(name)!r}, and was planned as {value!r}."
            )


def allowed_cpus() -> list[int]:
    """The CPUs that the kernel lets this process use, as /proc/self/status lists them."""
    text = Path("/proc/self/status").read_text()
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", text, re.MULTILINE)
    cpus: list[int] = []
    for part in match.group(1).split(",") if match else []:
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def check_preload() -> None:
    """Every library of LD_PRELOAD is mapped; the loader only warns about one it cannot find."""
    mapped = Path("/proc/self/maps").read_text()
    for library in os.environ.get("LD_PRELOAD", "").split(":"):
        if library and os.path.realpath(library) not in mapped:
            raise RankError(
                f"LD_PRELOAD names {library}, but it is not loaded. "
                "Run `orch provision` to repair the node."
            )
