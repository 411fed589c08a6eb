"""End runs and remove their leftovers on all nodes, and report what each node has cleaned up."""

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

# A node's cleanup takes at most 8.5 s, so that it ends within 10 s including the connection.
CLEANUP_SECONDS = 9.0
CONNECT_SECONDS = 5
MAY_LIVE = ("running", "unknown")


def stop(record: RunRecord, *, planned: bool) -> CleanupReport:
    """End all processes of a run on its nodes, and check that nothing is left.

    Args:
        record: The run's record.
        planned: Whether the run has not reported a supervisor, which may still be starting on node0.
    """
    start_time = time.monotonic()
    node0_options = ["--node0", *(["--planned"] if planned else [])]
    responses = ask_all(
        record.nodes,
        lambda host: node_program(
            record, "cleanup", "end", record.run_dir, *(node0_options if host == record.node0 else [])
        ),
        seconds=CLEANUP_SECONDS,
        connect_seconds=CONNECT_SECONDS,
    )
    return CleanupReport(
        run_id=record.run_id, seconds=round(time.monotonic() - start_time, 2), nodes=tuple(map(node_cleanup, responses))
    )


def node_cleanup(response: NodeAnswer) -> NodeCleanup:
    """Return the result of `cleanup end` on a node."""
    report = read(RunEnded, response)
    if isinstance(report, NodeCleanup):
        return report
    leftovers = tuple(map(describe, report.left))
    return NodeCleanup(
        node=response.node,
        state="left" if leftovers else "clean",
        ended=tuple(map(describe, report.ended)),
        left=leftovers,
        segments=report.segments,
        segments_left=report.segments_left,
        problem=response.problem,
    )


Report = TypeVar("Report", RunEnded, Leftovers, Cleaned, DamagedRuns)


def read(kind: type[Report], response: NodeAnswer) -> Report | NodeCleanup:
    """Return a node's report, or an `unreachable` result if there is none or it cannot be read."""
    problem = response.problem
    if response.value is not None:
        try:
            values.check_schema(response.value, "its answer")
            return values.read_known(kind, response.value, "its answer")
        except ProtocolError as error:
            problem = str(error)
    return unreachable(response.node, problem)


def unreachable(node: str, problem: str) -> NodeCleanup:
    """Return the result for a node that has not responded, with the reason."""
    return NodeCleanup(node=node, state="unreachable", ended=(), left=(), segments=(), problem=problem)


Cleanup = tuple[tuple[str, ...], str]  # a node's program and its folder of all runs


def describe(process: ProcessRecord) -> str:
    """Return the role, pid, name and rank of a process as text."""
    rank = f" of rank {process.rank}" if process.rank is not None else ""
    return f"{process.role} {process.pid} ({process.name}){rank}"


def clean(inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
    """End the leftovers of past runs on all nodes, and move damaged runs aside.

    Runs whose supervisor is alive are never touched.

    Args:
        inventory: The inventory of the nodes, or None for this machine.
        base: The folder of all runs on this machine.
        dry_run: Only report the leftovers and damaged runs, and change nothing.
    """
    start_time = time.monotonic()
    programs, live_runs, unreadable_nodes = places(base, inventory)
    action, exceptions = ("look", ()) if dry_run else ("clean", ("--except", *live_runs))

    def command(host: RunNode) -> tuple[str, ...]:
        cleanup, folder = programs[host]
        return (*cleanup, "cleanup", action, folder, *exceptions)

    responses = ask_all(programs, command, seconds=CLEANUP_SECONDS * 2)
    nodes = tuple(looked(response) if dry_run else cleaned(response) for response in responses)
    if inventory is None:
        nodes = tuple(aside_here(node, base, dry_run=dry_run) for node in nodes)
    else:
        nodes = aside_there(nodes, programs, dry_run=dry_run)
    seconds = round(time.monotonic() - start_time, 2)
    return CleanupReport(run_id="", seconds=seconds, nodes=(*nodes, *unreadable_nodes))


def places(base: Path, inventory: str | None) -> tuple[dict[RunNode, Cleanup], list[str], list[NodeCleanup]]:
    """Return what is needed to clean up the nodes.

    Returns:
        The program and the folder of runs of each node, the ids of the live runs, and a result for
        each node whose recorded facts are damaged.
    """
    if inventory is None:
        live_runs = [run.id for run in store.recorded(base).runs if run.state in MAY_LIVE]
        local_cleanup: Cleanup = ((sys.executable, str(TRAIN / "node.py")), str(base))
        return {RunNode(node="node0"): local_cleanup}, live_runs, []
    recorded = ask_inventory(inventory)
    programs: dict[RunNode, Cleanup] = {
        RunNode(node=node.name, via=node.via): ((node.python, f"{node.root}/train/node.py"), f"{node.root}/runs")
        for node in recorded.cluster.nodes
    }
    live_runs = [run_id for run_id, node_run in recorded.runs.items() if node_run.state in MAY_LIVE]
    unreadable_nodes = recorded.cluster.damaged.items()
    return programs, live_runs, [unreachable(name, problem) for name, problem in unreadable_nodes]


def cleaned(response: NodeAnswer) -> NodeCleanup:
    """Return the result of `cleanup clean` on a node."""
    report = read(Cleaned, response)
    if isinstance(report, NodeCleanup):
        return report
    ended = [f"{run_id}: {describe(process)}" for run_id, end in report.runs.items() for process in end.ended]
    leftovers = [f"{run_id}: {describe(process)}" for run_id, end in report.runs.items() for process in end.left]
    return NodeCleanup(
        node=response.node,
        state="left" if leftovers else "clean",
        ended=tuple(ended),
        left=tuple(leftovers),
        segments=paths_of(report.segments),
        segments_left=paths_of(report.segments_left),
        problem=response.problem,
    )


def looked(response: NodeAnswer) -> NodeCleanup:
    """Return the result of `cleanup look` on a node."""
    report = read(Leftovers, response)
    if isinstance(report, NodeCleanup):
        return report
    leftovers = [f"{run_id}: {describe(process)}" for run_id, processes in report.runs.items() for process in processes]
    segments = paths_of(report.segments)
    return NodeCleanup(
        node=response.node,
        state="left" if leftovers or segments else "clean",
        ended=(),
        left=tuple(leftovers),
        segments=segments,
        segments_left=paths_of(report.segments_left),
        problem=response.problem,
    )


def paths_of(segments: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the paths of the shared memory segments of all runs."""
    return tuple(path for paths in segments.values() for path in paths)


def aside_here(node: NodeCleanup, base: Path, *, dry_run: bool) -> NodeCleanup:
    """Add the damaged runs of this machine to a node's result, after moving them aside unless `dry_run`."""
    damaged_runs = store.recorded(base).damaged
    leftovers, moved = [damaged_run.describe() for damaged_run in damaged_runs] if dry_run else [], []
    for damaged_run in () if dry_run else damaged_runs:
        target = damaged.set_aside(damaged_run)
        leftovers += [] if target else [f"{damaged_run.folder}: something of it lives"]
        moved += [f"{damaged_run.folder} is damaged, and now {target}"] if target else []
    return with_aside(node, leftovers, moved)


def aside_there(
    nodes: tuple[NodeCleanup, ...], programs: dict[RunNode, Cleanup], *, dry_run: bool
) -> tuple[NodeCleanup, ...]:
    """Add the damaged runs of each node to its result, after moving them aside unless `dry_run`."""

    def command(host: RunNode) -> tuple[str, ...]:
        program, folder = programs[host]
        return (*program, "damaged", folder, *([] if dry_run else ["--set-aside"]))

    responses = ask_all(programs, command, seconds=CLEANUP_SECONDS)
    return tuple(map(aside_on, nodes, responses))


def aside_on(node: NodeCleanup, response: NodeAnswer) -> NodeCleanup:
    """Add the damaged runs in a node's response to its result."""
    report = read(DamagedRuns, response)
    if isinstance(report, NodeCleanup):
        problem = f"its damaged runs are not known: {report.problem}"
        return node if node.problem else replace(node, problem=problem)
    leftovers = [
        f"{damaged_run.folder} is damaged: {damaged_run.problem}"
        for damaged_run in report.damaged
        if damaged_run.folder not in report.moved
    ]
    moved = [f"{folder} is damaged, and now {path}" for folder, path in report.moved.items()]
    return with_aside(node, leftovers, moved)


def with_aside(node: NodeCleanup, leftovers: list[str], moved: list[str]) -> NodeCleanup:
    """Return the result with further leftovers and with the runs that were moved aside."""
    state = "left" if leftovers and node.state == "clean" else node.state
    return replace(node, state=state, left=(*node.left, *leftovers), moved=tuple(moved))
