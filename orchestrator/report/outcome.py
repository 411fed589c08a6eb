"""A recorded run -> what there is to tell about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.report.story import how_it_failed, story
from orchestrator.runs import Run
from orchestrator.signatures import Explanation, explain

LOG_CHARACTERS = 200_000
EXIT_CODES = {"done": 0, "stopped": 130}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first rank that failed. `text` ends with its traceback or last words."""

    rank: int
    node: str
    code: int | None
    signal: str | None
    text: str
    oom: str | None

    def describe(self) -> str:
        return how_it_failed(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. Seconds; `result` holds the figures that the script reported."""

    run_id: str
    folder: Path
    state: str
    recipe: str
    ranks: int
    backend: str
    precision: str
    seconds: float | None
    failure: Failure | None
    problem: str | None
    explanations: tuple[Explanation, ...]
    result: dict[str, Any] | None
    decisions: tuple[dict[str, str], ...]
    nodes: dict[str, dict[str, Any]]
    attempts: int
    timeline: tuple[dict[str, Any], ...]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES.get(self.state, 1)


def outcome_of(run: Run) -> Outcome:
    record = run.outcome or {}
    seconds = record["ended"] - record["started"] if record else None
    failure = failure_of(record.get("first_failure"), run)
    return Outcome(
        run_id=run.id,
        folder=run.folder.absolute(),
        state=run.state,
        recipe=run.plan["recipe"],
        ranks=len(run.plan["layout"]),
        backend=run.plan["backend"],
        precision=run.plan["precision"],
        seconds=seconds,
        failure=failure,
        problem=record.get("problem"),
        explanations=() if run.state in ("done", "running") else explain(words(run, failure)),
        result=run.result(),
        decisions=tuple(run.plan["decisions"]),
        nodes=record.get("nodes", {}),
        attempts=record.get("attempts", 1),
        timeline=tuple(story(run.events())),
    )


def words(run: Run, failure: Failure | None) -> str:
    """What the launcher and the failing rank (or every rank) have said."""
    ranks = "*" if failure is None else str(failure.rank)
    logs = [run.folder / "launcher.log", *sorted(run.folder.glob(f"ranks/rank-{ranks}.log"))]
    texts = [path.read_text(errors="replace")[-LOG_CHARACTERS:] for path in logs if path.exists()]
    told = [failure.describe(), failure.text] if failure else []
    return "\n".join([*told, *texts])


def failure_of(record: dict[str, Any] | None, run: Run) -> Failure | None:
    if record is None:
        return None
    rank = record["rank"]
    known = 0 <= rank < len(run.plan["layout"])
    node = record["node"] or (run.plan["layout"][rank]["node"] if known else "an unknown node")
    return Failure(
        rank=rank,
        node=node,
        code=record["code"],
        signal=record["signal"],
        text=record["text"],
        oom=record.get("oom"),
    )
