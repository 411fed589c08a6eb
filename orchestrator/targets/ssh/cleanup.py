"""Nothing of a run is left on its nodes, and each node says so."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from orch_node.protocol import values
from orch_node.protocol.cleanup import Cleaned, Leftovers, RunEnded
from orch_node.protocol.listing import DamagedRuns
from orch_node.protocol.outcome import ProcessRecord
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.paths import TRAIN
from orchestrator.runs import damaged, store
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.targets.ssh.find import ask_inventory
from orchestrator.targets.ssh.nodes import NodeAnswer, ask_all, node_program

# The cleanup needs at most 8.5 s; with the connection that stays below 10.
CLEANUP_SECONDS = 9.0
CONNECT_SECONDS = 5
MAY_LIVE = ("running", "unknown")


def stop(record: RunRecord, *, planned: bool) -> CleanupReport:
    """End a run on all its nodes, whoever of them still lives, and look that nothing is left.
    `planned`: nothing is known of its supervisor, which may be on its way to node0 just now."""
    began = time.monotonic()
    of_node0 = ["--node0", *(["--planned"] if planned else [])]
    answers = ask_all(
        record.nodes,
        lambda host: node_program(
            record, "cleanup", "end", record.run_dir, *(of_node0 if host == record.node0 else [])
        ),
        seconds=CLEANUP_SECONDS,
        connect_seconds=CONNECT_SECONDS,
    )
    return CleanupReport(
        run_id=record.run_id, seconds=round(time.monotonic() - began, 2), nodes=tuple(map(node_cleanup, answers))
    )


def node_cleanup(answer: NodeAnswer) -> NodeCleanup:
    found = read(RunEnded, answer)
    if isinstance(found, NodeCleanup):
        return found
    left = tuple(map(describe, found.left))
    return NodeCleanup(
        node=answer.node,
        state="left" if left else "clean",
        ended=tuple(map(describe, found.ended)),
        left=left,
        segments=found.segments,
        segments_left=found.segments_left,
        problem=answer.problem,
    )


Report = TypeVar("Report", RunEnded, Leftovers, Cleaned, DamagedRuns)


def read(kind: type[Report], answer: NodeAnswer) -> Report | NodeCleanup:
    """What a node has said; or that it has not, or nothing that can be read."""
    problem = answer.problem
    if answer.value is not None:
        try:
            values.check_schema(answer.value, "its answer")
            return values.read_known(kind, answer.value, "its answer")
        except ProtocolError as error:
            problem = str(error)
    return unreachable(answer.node, problem)


def unreachable(node: str, problem: str) -> NodeCleanup:
    return NodeCleanup(node=node, state="unreachable", ended=(), left=(), segments=(), problem=problem)


Cleanup = tuple[tuple[str, ...], str]  # the nodes' program, and the folder of all runs


def describe(process: ProcessRecord) -> str:
    rank = f" of rank {process.rank}" if process.rank is not None else ""
    return f"{process.role} {process.pid} ({process.name}){rank}"


def clean(inventory: str | None, base: Path, *, look: bool) -> CleanupReport:
    """End what past runs have left on all nodes, and move away those that cannot be read; with
    `look`, only tell of it.

    A run whose supervisor lives is never touched.
    """
    began = time.monotonic()
    programs, living, unasked = places(base, inventory)
    word, kept = ("look", ()) if look else ("clean", ("--except", *living))

    def command(host: RunNode) -> tuple[str, ...]:
        cleanup, folder = programs[host]
        return (*cleanup, "cleanup", word, folder, *kept)

    answers = ask_all(programs, command, seconds=CLEANUP_SECONDS * 2)
    nodes = tuple(looked(answer) if look else cleaned(answer) for answer in answers)
    if inventory is None:
        nodes = tuple(aside_here(node, base, look=look) for node in nodes)
    else:
        nodes = aside_there(nodes, programs, look=look)
    seconds = round(time.monotonic() - began, 2)
    return CleanupReport(run_id="", seconds=seconds, nodes=(*nodes, *unasked))


def places(base: Path, inventory: str | None) -> tuple[dict[RunNode, Cleanup], list[str], list[NodeCleanup]]:
    """(program, runs) of each node, the ids of the runs that live, and nodes that nobody can ask
    because their records are damaged."""
    if inventory is None:
        living = [run.id for run in store.recorded(base).runs if run.state in MAY_LIVE]
        here: Cleanup = ((sys.executable, str(TRAIN / "node.py")), str(base))
        return {RunNode(node="node0"): here}, living, []
    asked = ask_inventory(inventory)
    programs: dict[RunNode, Cleanup] = {
        RunNode(node=node.name, via=node.via): ((node.python, f"{node.root}/train/node.py"), f"{node.root}/runs")
        for node in asked.cluster.nodes
    }
    living = [run for run, one in asked.runs.items() if one.state in MAY_LIVE]
    unasked = asked.cluster.damaged.items()
    return programs, living, [unreachable(name, words) for name, words in unasked]


def cleaned(answer: NodeAnswer) -> NodeCleanup:
    found = read(Cleaned, answer)
    if isinstance(found, NodeCleanup):
        return found
    ended = [f"{run}: {describe(one)}" for run, end in found.runs.items() for one in end.ended]
    left = [f"{run}: {describe(one)}" for run, end in found.runs.items() for one in end.left]
    return NodeCleanup(
        node=answer.node,
        state="left" if left else "clean",
        ended=tuple(ended),
        left=tuple(left),
        segments=paths_of(found.segments),
        segments_left=paths_of(found.segments_left),
        problem=answer.problem,
    )


def looked(answer: NodeAnswer) -> NodeCleanup:
    found = read(Leftovers, answer)
    if isinstance(found, NodeCleanup):
        return found
    left = [f"{run}: {describe(one)}" for run, there in found.runs.items() for one in there]
    segments = paths_of(found.segments)
    return NodeCleanup(
        node=answer.node,
        state="left" if left or segments else "clean",
        ended=(),
        left=tuple(left),
        segments=segments,
        segments_left=paths_of(found.segments_left),
        problem=answer.problem,
    )


def paths_of(segments: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(path for paths in segments.values() for path in paths)


def aside_here(node: NodeCleanup, base: Path, *, look: bool) -> NodeCleanup:
    """With the runs of this machine that cannot be read."""
    found = store.recorded(base).damaged
    kept, moved = [one.describe() for one in found] if look else [], []
    for one in () if look else found:
        target = damaged.set_aside(one)
        kept += [] if target else [f"{one.folder}: something of it lives"]
        moved += [f"{one.folder} is damaged, and now {target}"] if target else []
    return with_aside(node, kept, moved)


def aside_there(
    nodes: tuple[NodeCleanup, ...], programs: dict[RunNode, Cleanup], *, look: bool
) -> tuple[NodeCleanup, ...]:
    """With the runs of other machines that these cannot read."""

    def command(host: RunNode) -> tuple[str, ...]:
        program, folder = programs[host]
        return (*program, "damaged", folder, *([] if look else ["--set-aside"]))

    answers = ask_all(programs, command, seconds=CLEANUP_SECONDS)
    return tuple(map(aside_on, nodes, answers))


def aside_on(node: NodeCleanup, answer: NodeAnswer) -> NodeCleanup:
    found = read(DamagedRuns, answer)
    if isinstance(found, NodeCleanup):
        problem = f"its damaged runs are not known: {found.problem}"
        return node if node.problem else replace(node, problem=problem)
    kept = [f"{one.folder} is damaged: {one.problem}" for one in found.damaged if one.folder not in found.moved]
    moved = [f"{folder} is damaged, and now {path}" for folder, path in found.moved.items()]
    return with_aside(node, kept, moved)


def with_aside(node: NodeCleanup, kept: list[str], moved: list[str]) -> NodeCleanup:
    state = "left" if kept and node.state == "clean" else node.state
    return replace(node, state=state, left=(*node.left, *kept), moved=tuple(moved))
