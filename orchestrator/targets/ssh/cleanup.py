"""End runs and remove their leftovers on all nodes, and report what each node has cleaned up."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orch_node.protocol.node_reports import Cleaned
from orch_node.protocol.outcome import ProcessRecord
from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.files import TRAIN, state_home
from orchestrator.load import packages
from orchestrator.runs import store
from orchestrator.runs.outcome import CleanupReport, NodeCleanup
from orchestrator.targets.ssh.find import query_inventory
from orchestrator.targets.ssh.nodes import NodeResponse, node_program, query_all

# A node's cleanup takes at most 8.5 s once Python has started, which takes seconds on a node without an idle core.
CLEANUP_SECONDS = 20.0
CONNECT_SECONDS = 5
POSSIBLY_ALIVE = ("running", "unknown")  # states of a run

# The command of a node's programs, its folder of all runs, and that of what controllers have sent to it.
CleanupPaths = tuple[tuple[str, ...], str, str]


def stop(record: RunRecord, *, planned: bool) -> CleanupReport:
    """End all processes of a run on its nodes, and check that nothing is left.

    Args:
        record: the run's record.
        planned: whether the run has not reported a supervisor, which may still be starting on node0.
    """
    start_time = time.monotonic()
    node0_options = ["--node0", *(["--planned"] if planned else [])]
    responses = query_all(
        record.all_nodes,
        lambda host: node_program(
            record, "cleanup", "end", record.run_dir, *(node0_options if host == record.node0 else [])
        ),
        Cleaned,
        seconds=CLEANUP_SECONDS,
        connect_seconds=CONNECT_SECONDS,
    )
    return CleanupReport(
        run_id=record.run_id,
        seconds=round(time.monotonic() - start_time, 2),
        nodes=tuple(result_of(response, names_runs=False) for response in responses),
    )


def result_of(response: NodeResponse[Cleaned], *, names_runs: bool = True, dry_run: bool = False) -> NodeCleanup:
    """Return the result of `node.py cleanup` on a node.

    Args:
        response: of the node.
        names_runs: whether the texts about processes begin with the id of their run.
        dry_run: whether the node has only looked.
    """
    report = response.value
    if report is None:
        return unreachable(response.node, response.problem)
    leftovers, segments = describe_processes(report.left, names_runs=names_runs), all_segments(report.segments)
    if dry_run:
        leftovers += tuple(f"{path}: no run uses it" for path in report.unused)
    leftovers += tuple(
        f"{run.folder} is damaged: {run.problem}" for run in report.damaged if run.folder not in report.moved
    )
    return NodeCleanup(
        node=response.node,
        state="left" if leftovers or (dry_run and segments) else "clean",
        ended=describe_processes(report.ended, names_runs=names_runs),
        left=leftovers,
        segments=segments,
        segments_left=all_segments(report.segments_left),
        unused=() if dry_run else report.unused,
        moved=tuple(f"{folder} is damaged; moved to {path}" for folder, path in report.moved.items()),
    )


def unreachable(node: str, problem: str) -> NodeCleanup:
    """Return the result for a node that has not responded, with the reason."""
    return NodeCleanup(node=node, state="unreachable", problem=problem)


def describe_processes(runs: Mapping[str, tuple[ProcessRecord, ...]], *, names_runs: bool) -> tuple[str, ...]:
    """Return the role, pid, name and rank of each process as text."""
    return tuple(
        (f"{run_id}: " if names_runs else "")
        + f"{process.role} {process.pid} ({process.name})"
        + (f" of rank {process.rank}" if process.rank is not None else "")
        for run_id, processes in runs.items()
        for process in processes
    )


def clean(inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
    """End the leftovers of past runs on all nodes, and move damaged runs aside.

    Runs whose supervisor is alive are never touched.

    Args:
        inventory: the inventory of the nodes, or None for this machine.
        base: the folder of all runs on this machine.
        dry_run: only report the leftovers and damaged runs, and change nothing.
    """
    start_time = time.monotonic()
    paths, live_runs, unreadable_nodes = cleanup_paths(base, inventory)
    action = "look" if dry_run else "clean"

    def command(host: RunNode) -> tuple[str, ...]:
        program, folder, sent = paths[host]
        damaged = ["--damaged"] if inventory else []  # this machine also has the copies of runs elsewhere
        return (*program, "cleanup", action, folder, "--store", sent, *damaged, "--except", *live_runs)

    responses = query_all(paths, command, Cleaned, seconds=CLEANUP_SECONDS * 2)
    nodes = tuple(result_of(response, dry_run=dry_run) for response in responses)
    if inventory is None:
        nodes = tuple(
            remove_unused_packages(set_aside_locally(node, base, dry_run=dry_run), dry_run=dry_run) for node in nodes
        )
    seconds = round(time.monotonic() - start_time, 2)
    return CleanupReport(run_id="", seconds=seconds, nodes=(*nodes, *unreadable_nodes))


def cleanup_paths(
    base: Path, inventory: str | None
) -> tuple[dict[RunNode, CleanupPaths], list[str], list[NodeCleanup]]:
    """Return what is needed to clean up the nodes.

    Returns:
        The programs and the folders of each node, the ids of the live runs, and a result for
        each node whose recorded facts are damaged.
    """
    if inventory is None:
        live_runs = [run.id for run in store.recorded(base).runs if run.state in POSSIBLY_ALIVE]
        sent = str(state_home() / "store")
        local_paths: CleanupPaths = ((sys.executable, str(TRAIN / "node.py")), str(base), sent)
        return {RunNode(node="node0"): local_paths}, live_runs, []
    recorded = query_inventory(inventory)
    paths: dict[RunNode, CleanupPaths] = {
        RunNode(node=node.name, via=node.via): (
            (node.python, f"{node.root}/train/node.py"),
            f"{node.root}/runs",
            f"{node.root}/store",
        )
        for node in recorded.cluster.nodes
    }
    live_runs = [run_id for run_id, node_run in recorded.runs.items() if node_run.state in POSSIBLY_ALIVE]
    unreadable_nodes = recorded.cluster.damaged.items()
    return paths, live_runs, [unreachable(name, problem) for name, problem in unreadable_nodes]


def all_segments(segments: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the paths of the shared memory segments of all runs."""
    return tuple(path for paths in segments.values() for path in paths)


def set_aside_locally(node: NodeCleanup, base: Path, *, dry_run: bool) -> NodeCleanup:
    """Add the damaged runs of this machine to a node's result, after moving them aside unless `dry_run`."""
    damaged_runs = store.recorded(base).damaged
    if dry_run:
        return add_results(node, [damaged_run.describe() for damaged_run in damaged_runs], [])
    leftovers, moved = [], []
    for damaged_run in damaged_runs:
        if target := store.quarantine(damaged_run):
            moved.append(f"{damaged_run.folder} is damaged; moved to {target}")
        else:
            leftovers.append(f"{damaged_run.folder}: a process of this run may still be alive")
    return add_results(node, leftovers, moved)


def remove_unused_packages(node: NodeCleanup, *, dry_run: bool) -> NodeCleanup:
    """Add the unused packages of this machine to its result, after deleting them unless `dry_run`."""
    unused = packages.remove_unused(dry_run=dry_run)
    if not dry_run:
        return replace(node, unused=(*node.unused, *unused))
    return add_results(node, [f"{path}: no run uses it" for path in unused], list(node.moved))


def add_results(node: NodeCleanup, leftovers: list[str], moved: list[str]) -> NodeCleanup:
    """Return the result with further leftovers and with the runs that were moved aside."""
    state = "left" if leftovers and node.state == "clean" else node.state
    return replace(node, state=state, left=(*node.left, *leftovers), moved=tuple(moved))
