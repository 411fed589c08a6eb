"""The record of a run: run.json on each of its nodes, and part of plan.json on a controller.

It holds what a controller needs to find and describe a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from orch_node.protocol import files, values
from orch_node.protocol.values import ProtocolError

SCHEMA = 1
DEFAULT_TARGET = "ssh"
SOURCE = "the record of a run"
MAX_TIME = 1e11  # seconds since the epoch


@dataclass(frozen=True)
class Decision:
    """A decision about a run, with the reason."""

    topic: str
    value: str
    reason: str = ""

    def describe(self) -> str:
        """Return the decision as one line."""
        return f"{self.topic}: {self.value}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class RankPlacement:
    """The node and the cores of a rank."""

    rank: int
    node: str
    local_rank: int
    local_world_size: int
    cpus: tuple[int, ...]  # one hardware thread of each of its cores
    threads: int  # 0 until a batch system has assigned the cores
    worker_cpus: tuple[int, ...] = ()  # reserved for its oneCCL workers

    def binding(self) -> str:
        """Return the cores and threads; the cores of a pod are not known yet."""
        cores = f"cores {number_ranges(self.cpus)}, " if self.cpus else ""
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}" if self.threads else "one thread per core"
        workers = f", oneCCL on {number_ranges(self.worker_cpus)}" if self.worker_cpus else ""
        return f"{cores}{threads}{workers}"


@dataclass(frozen=True)
class RunNode:
    """A node, and the OpenSSH command that reaches it unless it is this machine."""

    node: str
    via: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """The record of a run. Paths are those of its nodes, of which node0 is the first."""

    run_id: str
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
    created: float  # seconds since the epoch
    decisions: tuple[Decision, ...]
    layout: tuple[RankPlacement, ...]
    target: str = DEFAULT_TARGET
    location: dict[str, Any] = field(default_factory=dict)  # the values with which its target finds it
    name: str = ""  # as the user named it
    arguments: tuple[str, ...] = ()  # the settings of the recipe and the arguments of the script, without secrets
    earlier_nodes: tuple[RunNode, ...] = ()  # those of earlier attempts alone, which may have files of the run

    @property
    def all_nodes(self) -> tuple[RunNode, ...]:
        """Return the nodes of all attempts, those of the last one first."""
        return (*self.nodes, *self.earlier_nodes)


def parse(value: object) -> RunRecord:
    """Return the record in a JSON value; ignore fields that only another version knows.

    Raises:
        ProtocolError: if it is damaged.
    """
    content = values.check(value, SOURCE, dict)
    values.check_schema(content, SOURCE, SCHEMA)
    record = values.read(RunRecord, content, SOURCE, ignore_unknown=True)
    if problems := "; ".join(find_problems(record)):
        raise ProtocolError(f"{SOURCE}: {problems}.")
    return record


def find_problems(record: RunRecord) -> Iterator[str]:
    """Yield values that are impossible or unsafe, because they become paths and arguments."""
    if not files.is_run_id(record.run_id):
        yield f"run_id {record.run_id!r:.60} is not a valid name"
    names = [node.node for node in record.all_nodes]
    if not record.nodes or len(set(names)) < len(names):
        yield "nodes is empty or has duplicates"
    elif record.node0.node != names[0]:
        yield f"node0 is {record.node0.node!r:.60}, not the first of its nodes"
    if not record.layout or any(placement.rank != rank for rank, placement in enumerate(record.layout)):
        yield "layout must contain the ranks from 0 on"
    if record.name and not files.is_run_id(record.name):
        yield f"name {record.name!r:.60} is not a valid name"
    if not 0 <= record.created < MAX_TIME:
        yield f"created {record.created!r:.30} is not a valid time"


def render(record: RunRecord) -> dict[str, Any]:
    """Return the record as a JSON object, without target and location of a run over SSH, and empty optional fields."""
    content = {"schema": SCHEMA, **values.record(record)}
    omitted = {"target", "location"} if record.target == DEFAULT_TARGET else set()
    omitted |= {name for name in ("name", "arguments", "earlier_nodes") if not content[name]}
    return {name: value for name, value in content.items() if name not in omitted}


def number_ranges(numbers: Iterable[int]) -> str:
    """Format numbers as the kernel formats CPUs: (0, 1, 2, 8) -> '0-2,8'."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in ranges)
