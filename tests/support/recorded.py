"""Make run folders as orch records them, with metrics computed by formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from orch_node.protocol import outcome, values
from orch_node.protocol.outcome import Outcome
from orch_node.protocol.record import Decision, RankPlacement, RunNode, RunRecord, render

NODE0: dict[str, Any] = {"node": "node0", "via": []}
STARTED = 1_767_268_800.0  # 2026-01-01 12:00 UTC

# The event with which the ranks of a batch job record their precision.
PRECISION_EVENT = {
    "event": "decision",
    "rank": 0,
    "text": "precision: bf16 (all nodes have BF16 instructions)",
    "topic": "precision",
    "value": "bf16",
}
FAR_NODE = RunNode(node="node0", via=("ssh", "-F", "/state/ssh config", "node0"))
RUN_RECORD = RunRecord(
    run_id="20260101-120000-qa-0000",
    node0=FAR_NODE,
    nodes=(FAR_NODE, RunNode(node="n1")),
    run_dir="/opt/orch/runs/r",
    train="/opt/orch/train",
    python="python3",
    recipe="qa",
    resumes=True,
    output_dir=None,
    backend="ccl",
    precision="bf16",
    started_by="me@here",
    created=1.5,
    decisions=(Decision(topic="ranks", value="1", reason="as requested"),),
    layout=(RankPlacement(rank=0, node="node0", local_rank=0, local_world_size=1, cpus=(0, 2), threads=2),),
)


def make_run(
    base: Path,
    run_id: str = "20260101-120000-qa-0000",
    *,
    ranks: int = 8,
    nodes: int = 2,
    straggler: int | None = None,
    fails: int | None = None,
    seconds: int = 120,
    ended: bool = True,
    **changes: Any,
) -> Path:
    """Write the folder of a run, and return its path.

    Args:
        base: folder for runs.
        run_id: name of the run.
        ranks: number of ranks.
        nodes: number of nodes.
        straggler: rank that computes twice as long as the others.
        fails: rank that fails at the end.
        seconds: duration of the run.
        ended: whether the run has an outcome.
        changes: keys of plan.json.
    """
    folder = base / run_id
    (folder / "ranks").mkdir(parents=True)
    layout = [make_placement(rank, ranks // nodes) for rank in range(ranks)]
    plan = make_plan(folder, layout) | changes
    write_json(folder / "plan.json", plan | {"nodes": [plan["node0"]]})
    for rank in range(ranks):
        lines = [make_sample(rank, second, slow=rank == straggler) for second in range(1, seconds + 1)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"ranks/rank-{rank}.metrics.jsonl").write_text(text + '{"torn')
    text = "Traceback (most recent call last):\nValueError: <b>boom</b> & more"
    failure = None if fails is None else {"rank": fails, "node": layout[fails]["node"], "code": 1, "text": text}
    write_events(folder, make_events(layout, seconds, failure))
    end = {"first_failure": failure, "ended": STARTED + seconds + 12}
    if ended:
        write_json(folder / "outcome.json", make_outcome("failed" if failure else "done") | end)
    return folder


def make_outcome(state: str = "done") -> dict[str, Any]:
    """Return the outcome.json of a run in which no rank has failed."""
    return dict(json.loads(outcome.render(Outcome(state=state, started=STARTED, ended=STARTED + 12))))


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def write_events(folder: Path, events: Iterable[dict[str, Any]], mode: str = "w") -> None:
    """Write the events of a run, or append them with the mode "a"."""
    with (folder / "events.jsonl").open(mode) as log:
        log.writelines(json.dumps(event) + "\n" for event in events)


def make_placement(rank: int, per_node: int) -> dict[str, Any]:
    node, local_rank = divmod(rank, per_node)
    sizes = {"local_world_size": per_node, "cpus": (0, 1, 2, 3), "threads": 4}
    return values.record(RankPlacement(rank=rank, node=f"node{node}", local_rank=local_rank, **sizes))


def make_plan(folder: Path, layout: list[dict[str, Any]]) -> dict[str, Any]:
    return render(RUN_RECORD) | {
        "run_id": folder.name,
        "request": {"recipe": "qa"},
        "directory": str(folder.parent),
        "created": STARTED,
        "node0": NODE0,
        "nodes": [NODE0],
        "run_dir": str(folder),
        "output_dir": f"{folder}/output",
        "layout": layout,
        "decisions": [
            {"topic": "backend", "value": "ccl", "reason": "oneCCL over Intel MPI"},
            {"topic": "ranks", "value": str(len(layout)), "reason": "4 on each node, as requested"},
        ],
        "stack": "current",
        "fingerprints": {"0123456789abcdef": "node0, node1"},
        "settings": {"learning_rate": 2e-4, "seed": 0},
        "script_args": [],
        "scripts": {
            "path": "/home/me/two words/qa.py",
            "sha256": "ab" * 32,
            "git": {"commit": "c" * 40, "changed": ["qa.py"]},
        },
        "command": {"argv": ["mpiexec.hydra", "-n", str(len(layout)), "it's"], "env": {"A": "1"}},
    }


def make_sample(rank: int, second: int, *, slow: bool) -> dict[str, Any]:
    """Return the metrics of a rank for a second with 10 steps; fewer while it saves, every 40 seconds."""
    noise = math.sin(second * (rank + 3)) * math.cos(second * 1.7 + rank)
    saving = second % 40 == 0
    training = second > 8
    step = 0.1 + 0.004 * noise
    return {
        "time": STARTED + second,
        "seconds": 1.0,
        "step": max(0, (second - 8) * 10),
        "steps": (5 if saving else 10) * training,
        "step_seconds": step if training else None,
        "step_seconds_max": (0.55 if saving else step * 1.3) if training else None,
        "work_seconds": ((0.072 if slow else 0.036) + 0.003 * noise) if training else None,
        "samples_per_second": (40 + 2 * noise) * (0.5 if saving else 1) if training else None,
        "loss": 4.5 * math.exp(-second / 50) + 0.3 + 0.25 * noise if training else None,
        "rss_bytes": 1.1e9 + 0.4e9 * (1 - math.exp(-second / 10)) + rank * 6e6,
        "cpu_seconds": 3.9,
    }


def make_events(layout: list[dict[str, Any]], seconds: int, failure: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the events of a run, in the order in which they are recorded."""
    for placement in layout:
        rank = placement["rank"]
        head = {"rank": rank, "node": placement["node"]}
        yield {"event": "started", "time": STARTED + 0.4 + rank * 0.02, **head}
        yield {"event": "joined", "time": STARTED + 3.5 + rank * 0.05, "backend": "ccl", **head}
        yield {"event": "first_step", "time": STARTED + 8.0 + rank * 0.01, "torch_seed": 0, **head}
    for second in range(5, seconds):
        phase = "evaluate before" if second < 8 else "save" if second % 40 == 0 else "train"
        loss = 4.5 * math.exp(-second / 50) + 0.3 if phase == "train" else None
        figures = {"step": (second - 8) * 10, "steps": (seconds - 8) * 10, "loss": loss}
        yield {"event": "progress", "rank": 0, "time": STARTED + second, "phase": phase, **figures}
    if failure:
        yield {"event": "failed", "time": STARTED + seconds + 2, "rank": -1, "failure": failure | {"text": ""}}
    for placement in layout:
        rank = placement["rank"]
        end = {"rank": rank, "node": placement["node"], "time": STARTED + seconds + 2}
        failed = bool(failure) and failure["rank"] == rank
        if failed:
            yield {"event": "exception", "text": failure["text"], **end}
        yield {"event": "exit", "code": int(bool(failure)), "stopped": bool(failure) and not failed, **end}
    if not failure:
        figures = {"train_samples_per_second": 320.0, "after": {"em": 20.5, "f1": 31.25}}
        yield {"event": "result", "rank": 0, "time": STARTED + seconds + 1, **figures}
