"""Several runs that were started at once: a line for each, and all as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.model.decision import ALREADY_DONE, ARRAY_MEMBER
from orchestrator.planning.plan import Plan
from orchestrator.report import training
from orchestrator.report.listing import SCHEMA
from orchestrator.runs.outcome import Outcome
from orchestrator.runs.timeline import how_it_failed


def line(outcome: Outcome) -> str:
    """`ID learning_rate=1e-5 (1 of 3): done`"""
    of_its_own = next((one.value for one in outcome.decisions if one.topic == ARRAY_MEMBER), "")
    why = how_it_failed(outcome.failure) if outcome.failure else outcome.problem
    return f"{outcome.run_id} {of_its_own}: {outcome.state}{f': {why}' if why else ''}"


def text(outcomes: Sequence[Outcome]) -> str:
    names = " ".join(one.run_id for one in outcomes)
    return "\n".join([*map(line, outcomes), f"orch report {names} shows them beside each other"])


def as_json(outcomes: Sequence[Outcome], exit_code: int) -> str:
    runs = [json.loads(training.as_json(one)) for one in outcomes]
    value = {"schema": SCHEMA, "kind": "array", "runs": runs, "exit_code": exit_code}
    return json.dumps(value, indent=1)


def started(plan: Plan) -> str:
    """Return a line for each run: those that run now, and those that were done before."""
    skipped = (decision.describe() for decision in plan.decisions if decision.topic == ALREADY_DONE)
    return "\n".join([*skipped, *(f"{member.run.run_id} runs" for member in plan.array)])


def started_as_json(plan: Plan) -> str:
    names = [one.run.run_id for one in plan.array]
    return json.dumps({"schema": SCHEMA, "kind": "started", "runs": names}, indent=1)
