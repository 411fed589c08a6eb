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


def stop(record: RunRecord, *, planned: bool) -> CleanupReport:
    """End all processes of a run on its nodes, and check that nothing is left.

    Args:
        record: the run's record.
        planned: whether the run has not reported a supervisor, which may still be starting on node0.
    """
    start_time = time.monotonic()
    node0_options = ["--node0", *(["--planned"] if planned else [])]
    command = node_program(record, "cleanup", "end", record.run_dir)
    commands = {host: (*command, *(node0_options if host == record.node0 else [])) for host in record.all_nodes}
    responses = query_all(commands, Cleaned, seconds=CLEANUP_SECONDS, connect_seconds=CONNECT_SECONDS)
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
    action = "look" if dry_run else "clean"
    commands: dict[RunNode, tuple[str, ...]] = {}
    unreadable_nodes: Mapping[str, str] = {}  # those with damaged facts
    if inventory is None:
        live_runs = [run.id for run in store.recorded(base).runs if run.state in POSSIBLY_ALIVE]
        # Without --damaged: this machine also has the copies of runs elsewhere.
        arguments = (action, str(base), "--store", f"{state_home()}/store", "--except", *live_runs)
        commands[RunNode(node="node0")] = (sys.executable, f"{TRAIN}/node.py", "cleanup", *arguments)
    else:
        recorded = query_inventory(inventory)
        live_runs = [run_id for run_id, node_run in recorded.runs.items() if node_run.state in POSSIBLY_ALIVE]
        unreadable_nodes = recorded.cluster.damaged
        for node in recorded.cluster.nodes:
            folders = (f"{node.root}/runs", "--store", f"{node.root}/store")
            arguments = (action, *folders, "--damaged", "--except", *live_runs)
            commands[node.run_node] = (node.python, f"{node.root}/train/node.py", "cleanup", *arguments)
    responses = query_all(commands, Cleaned, seconds=CLEANUP_SECONDS * 2)
    nodes = tuple(result_of(response, dry_run=dry_run) for response in responses)
    if inventory is None:
        nodes = tuple(add_local_results(node, base, dry_run=dry_run) for node in nodes)
    return CleanupReport(
        run_id="",
        seconds=round(time.monotonic() - start_time, 2),
        nodes=(*nodes, *(unreachable(name, problem) for name, problem in unreadable_nodes.items())),
    )


def all_segments(segments: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the paths of the shared memory segments of all runs."""
    return tuple(path for paths in segments.values() for path in paths)


def add_local_results(node: NodeCleanup, base: Path, *, dry_run: bool) -> NodeCleanup:
    """Add the damaged runs and unused packages of this machine to its result, after removing them unless `dry_run`."""
    damaged_runs, unused = store.recorded(base).damaged, packages.remove_unused(dry_run=dry_run)
    leftovers, moved = [], []
    if dry_run:
        leftovers = [damaged_run.describe() for damaged_run in damaged_runs]
        leftovers += [f"{path}: no run uses it" for path in unused]
    for damaged_run in damaged_runs if not dry_run else ():
        if target := store.quarantine(damaged_run):
            moved.append(f"{damaged_run.folder} is damaged; moved to {target}")
        else:
            leftovers.append(f"{damaged_run.folder}: a process of this run may still be alive")
    return replace(
        node,
        state="left" if leftovers and node.state == "clean" else node.state,
        left=(*node.left, *leftovers),
        moved=tuple(moved),
        unused=node.unused if dry_run else (*node.unused, *unused),
    )
