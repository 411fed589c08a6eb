"""The record of a run: run.json on each of its nodes, and part of plan.json on a controller.

It holds what any controller must know to find a run and to tell of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from orch_node.protocol import files, values
from orch_node.protocol.values import ProtocolError

SCHEMA = 1
FIRST_TARGET = "ssh"
WHERE = "the record of a run"
LATEST = 1e11  # seconds since the epoch that a calendar still knows
EARLIER = {"kube": "kubernetes"}  # where earlier versions kept the location -> its target


@dataclass(frozen=True)
class Decision:
    """What was decided, and why."""

    topic: str
    value: str
    reason: str = ""

    def describe(self) -> str:
        return f"{self.topic}: {self.value}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Place:
    """Where one rank runs: its CPUs (one hardware thread of each of its cores) and threads.

    `worker_cpus`: cores that its oneCCL workers have for themselves.
    """

    rank: int
    node: str
    local_rank: int
    local_world_size: int
    cpus: tuple[int, ...]
    threads: int
    worker_cpus: tuple[int, ...] = ()

    def describe(self) -> str:
        cores = f"cores {cpu_list(self.cpus)}, " if self.cpus else ""  # a pod's are not known yet
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        text = f"rank {self.rank}: {self.node}, {cores}{threads}"
        return f"{text}, oneCCL on {cpu_list(self.worker_cpus)}" if self.worker_cpus else text


@dataclass(frozen=True)
class RunNode:
    """A node, and the OpenSSH command that reaches it, if it is another machine."""

    node: str
    via: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """`run_dir`, `train`, `python`: paths on its nodes, of which node0 is the first. `created`:
    seconds since the epoch. `location`: what else its target needs to find it, in its own words."""

    run_id: str
    key: str
    node0: RunNode
    nodes: tuple[RunNode, ...]
    run_dir: str
    train: str
    python: str
    recipe: str
    resumes: bool
    output_dir: str | None
    backend: str
    precision: str
    started_by: str
    created: float
    decisions: tuple[Decision, ...]
    layout: tuple[Place, ...]
    target: str = FIRST_TARGET
    location: dict[str, Any] = field(default_factory=dict)


NAMES = tuple(one.name for one in fields(RunRecord))


def parse(value: object) -> RunRecord:
    """What `render` made, now or in another version: what that one says besides is dropped.

    Raises ProtocolError.
    """
    found = values.an_object(value, WHERE)
    if found.get("schema") != SCHEMA:
        raise ProtocolError(f"{WHERE} has schema {found.get('schema')!r:.60}, not {SCHEMA}.")
    known = {name: found[name] for name in NAMES if name in found}
    record = values.read(RunRecord, {"started_by": "", **known, **location_of(found)}, WHERE)
    if wrong := "; ".join(impossible(record)):
        raise ProtocolError(f"{WHERE}: {wrong}.")
    return record


def impossible(record: RunRecord) -> Iterator[str]:
    """What no run can have: whoever wrote it, it becomes paths and the arguments of programs."""
    if not files.is_run_id(record.run_id):
        yield f"run_id {record.run_id!r:.60} is no name of a run"
    names = [one.node for one in record.nodes]
    if not names or len(set(names)) < len(names):
        yield "nodes are none, or one of them twice"
    elif record.node0.node != names[0]:
        yield f"node0 is {record.node0.node!r:.60}, not the first of its nodes"
    if not record.layout or any(place.rank != at for at, place in enumerate(record.layout)):
        yield "layout does not have the ranks from 0 on"
    if not 0 <= record.created < LATEST:
        yield f"created {record.created!r:.30} is no time"


def location_of(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The target and its location as an earlier version has said them."""
    earlier = [(target, found[key]) for key, target in EARLIER.items() if found.get(key)]
    return {"target": earlier[0][0], "location": earlier[0][1]} if earlier else {}


def render(record: RunRecord) -> dict[str, Any]:
    """As JSON has it; without a target where it is the one of before there was a choice."""
    found = {"schema": SCHEMA, **values.record(record)}
    own = ("target", "location") if record.target == FIRST_TARGET else ()
    return {name: value for name, value in found.items() if name not in own}


@cache  # ranks of nodes of one kind have the same
def cpu_list(cpus: tuple[int, ...]) -> str:
    """CPUs as the kernel lists them: (0, 1, 2, 8) -> '0-2,8'."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
