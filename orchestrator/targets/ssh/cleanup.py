"""Nothing of a run is left on its nodes, and each node says so."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orch_node.protocol.record import RunNode, RunRecord

from orchestrator import load
from orchestrator.paths import TRAIN
from orchestrator.runs import store
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.targets.ssh.find import ask_inventory
from orchestrator.targets.ssh.nodes import NodeAnswer, ask_all, node_program

# The cleanup needs at most 8.5 s; with the connection that stays below 10.
CLEANUP_SECONDS = 9.0
CONNECT_SECONDS = 5


def stop(record: RunRecord) -> CleanupReport:
    """End a run on all its nodes, whoever of them still lives, and look that nothing is left."""
    began = time.monotonic()
    answers = ask_all(
        record.nodes,
        lambda host: node_program(
            record, "cleanup", "end", record.run_dir, *(["--node0"] if host == record.node0 else [])
        ),
        seconds=CLEANUP_SECONDS,
        connect_seconds=CONNECT_SECONDS,
    )
    return CleanupReport(
        run_id=record.run_id,
        seconds=round(time.monotonic() - began, 2),
        nodes=tuple(node_cleanup(answer, answer.value or {}) for answer in answers),
    )


def node_cleanup(answer: NodeAnswer, found: Mapping[str, Any]) -> NodeCleanup:
    left = tuple(map(describe, found.get("left", ())))
    state = "unreachable" if answer.value is None else "left" if left else "clean"
    return NodeCleanup(
        node=answer.node,
        state=state,
        ended=tuple(map(describe, found.get("ended", ()))),
        left=left,
        segments=tuple(found.get("segments", ())),
        problem=answer.problem,
    )


Cleanup = tuple[tuple[str, ...], str]  # the command of the cleanup, and the folder of all runs


def describe(process: Mapping[str, Any]) -> str:
    rank = f" of rank {process['rank']}" if process["rank"] is not None else ""
    return f"{process['role']} {process['pid']} ({process['name']}){rank}"


def clean(inventory: str | None, base: Path, *, look: bool) -> CleanupReport:
    """End what past runs have left on all nodes; with `look`, only tell of it.

    A run whose supervisor lives is never touched.
    """
    began = time.monotonic()
    programs, living = places(base, inventory)
    word, kept = ("look", ()) if look else ("clean", ("--except", *living))

    def command(host: RunNode) -> tuple[str, ...]:
        cleanup, folder = programs[host]
        return (*cleanup, word, folder, *kept)

    answers = ask_all(programs, command, seconds=CLEANUP_SECONDS * 2)
    return CleanupReport(
        run_id="",
        seconds=round(time.monotonic() - began, 2),
        nodes=tuple(cleaned(answer, look=look) for answer in answers),
    )


def places(base: Path, inventory: str | None) -> tuple[dict[RunNode, Cleanup], list[str]]:
    """(command of the cleanup, runs) of each node, and the ids of the runs that live."""
    if inventory is None:
        living = [run.id for run in store.list_runs(base) if run.state == "running"]
        here: Cleanup = ((sys.executable, str(TRAIN / "node.py"), "cleanup"), str(base))
        return {RunNode(node="node0"): here}, living
    found, _ = ask_inventory(inventory)
    programs: dict[RunNode, Cleanup] = {
        RunNode(node=node.name, via=node.via): (
            (node.python, f"{node.root}/train/node.py", "cleanup"),
            f"{node.root}/runs",
        )
        for node in load.cluster(inventory).nodes
    }
    return programs, [run for run, one in found.items() if one.state == "running"]


def cleaned(answer: NodeAnswer, *, look: bool) -> NodeCleanup:
    value = answer.value or {}
    ended: list[str] = []
    left: list[str] = []
    for run, found in value.get("runs", {}).items():
        there = found if look else found["ended"]
        ended += [f"{run}: {describe(process)}" for process in there]
        left += [] if look else [f"{run}: {describe(process)}" for process in found["left"]]
    segments = [path for paths in value.get("segments", {}).values() for path in paths]
    state = "unreachable" if answer.value is None else "left" if left else "clean"
    if look and (ended or segments):
        state = "left"
    return NodeCleanup(
        node=answer.node,
        state=state,
        ended=() if look else tuple(ended),
        left=tuple(ended) if look else tuple(left),
        segments=tuple(segments),
        problem=answer.problem,
    )
