"""The record of a run: run.json on each of its nodes, and part of plan.json on a controller.

It holds what any controller must know to find a run and to tell of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from orch_node.protocol import files, values
from orch_node.protocol.values import ProtocolError

SCHEMA = 1
FIRST_TARGET = "ssh"
WHERE = "the record of a run"
LATEST = 1e11  # seconds since the epoch that a calendar still knows


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

    `threads` is 0 until a batch system has given the cores.

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
        # Those of a pod are not known yet.
        cores = f"cores {number_ranges(self.cpus)}, " if self.cpus else ""
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        threads = threads if self.threads else "a thread for each of its cores"
        text = f"rank {self.rank}: {self.node}, {cores}{threads}"
        return f"{text}, oneCCL on {number_ranges(self.worker_cpus)}" if self.worker_cpus else text


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
    record = values.read(RunRecord, known, WHERE)
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


def render(record: RunRecord) -> dict[str, Any]:
    """Return the record as a JSON object, without target and location of a run over SSH."""
    found = {"schema": SCHEMA, **values.record(record)}
    own = ("target", "location") if record.target == FIRST_TARGET else ()
    return {name: value for name, value in found.items() if name not in own}


def number_ranges(numbers: Iterable[int]) -> str:
    """Format numbers as the kernel formats CPUs: (0, 1, 2, 8) -> '0-2,8'."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in ranges)
