"""`orch stop` and `orch clean`: nothing of a run is left on its nodes, and each node says so."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator import load, runs
from orchestrator.card import Whereabouts
from orchestrator.operations.find import ask_inventory
from orchestrator.operations.reach import Said, ask_all
from orchestrator.operations.watch import Watch
from orchestrator.plan import Target
from orchestrator.report.swept import NodeSwept, Swept
from orchestrator.share import TRAIN

# sweep.py needs at most 8.5 s; with the connection that stays below 10.
SWEEP_SECONDS = 9.0
CONNECT_SECONDS = 5


def stop(where: Whereabouts, folder: Path) -> Swept:
    """End a run on all its nodes, whoever of them still lives, and look that nothing is left."""
    if where.kube is not None:
        from orchestrator.operations.kube import stop as kube

        return kube.stop(where, folder)
    began = time.monotonic()
    said = ask_all(
        where.nodes,
        lambda target: where.program(
            "sweep.py", "end", where.run_dir, *(["--node0"] if target == where.node0 else [])
        ),
        seconds=SWEEP_SECONDS,
        connect_seconds=CONNECT_SECONDS,
    )
    seconds = round(time.monotonic() - began, 2)
    if said[0].value is not None:
        Watch(where, folder).source.refresh()
    nodes = tuple(swept(answer, answer.value or {}) for answer in said)
    return Swept(run_id=where.run_id, seconds=seconds, nodes=nodes)


def swept(answer: Said, found: Mapping[str, Any]) -> NodeSwept:
    left = tuple(map(describe, found.get("left", ())))
    state = "unreachable" if answer.value is None else "left" if left else "clean"
    return NodeSwept(
        node=answer.node,
        state=state,
        ended=tuple(map(describe, found.get("ended", ()))),
        left=left,
        segments=tuple(found.get("segments", ())),
        problem=answer.problem,
    )


def describe(process: Mapping[str, Any]) -> str:
    rank = f" of rank {process['rank']}" if process["rank"] is not None else ""
    return f"{process['role']} {process['pid']} ({process['name']}){rank}"


def clean(runs_dir: Path, inventory: str | None, *, look: bool) -> Swept:
    """End what past runs have left on all nodes; with `look`, only tell of it.

    A run whose supervisor lives is never touched.
    """
    began = time.monotonic()
    programs, living = places(runs_dir, inventory)
    word, kept = ("look", ()) if look else ("clean", ("--except", *living))

    def command(target: Target) -> tuple[str, ...]:
        python, script, folder = programs[target]
        return (python, script, word, folder, *kept)

    answers = ask_all(programs, command, seconds=SWEEP_SECONDS * 2)
    return Swept(
        run_id="",
        seconds=round(time.monotonic() - began, 2),
        nodes=tuple(cleaned(answer, look=look) for answer in answers),
    )


def places(
    runs_dir: Path, inventory: str | None
) -> tuple[dict[Target, tuple[str, str, str]], list[str]]:
    """(interpreter, sweep.py, runs) of each node, and the ids of the runs that live."""
    if inventory is None:
        base = runs_dir.absolute()
        living = [run.id for run in runs.list_runs(base) if run.state == "running"]
        here = (sys.executable, str(TRAIN / "sweep.py"), str(base))
        return {Target(node="node0"): here}, living
    found, _ = ask_inventory(inventory)
    programs = {
        Target(node=node.name, via=node.via): (
            node.python,
            f"{node.root}/train/sweep.py",
            f"{node.root}/runs",
        )
        for node in load.cluster(inventory).nodes
    }
    return programs, [run for run, one in found.items() if one.state == "running"]


def cleaned(answer: Said, *, look: bool) -> NodeSwept:
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
    return NodeSwept(
        node=answer.node,
        state=state,
        ended=() if look else tuple(ended),
        left=tuple(ended) if look else tuple(left),
        segments=tuple(segments),
        problem=answer.problem,
    )
