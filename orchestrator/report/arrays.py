"""Reports about several runs that were started at once: a line for each run, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.model.decision import ARRAY_MEMBER
from orchestrator.planning.plan import Plan
from orchestrator.report import training
from orchestrator.report.listing import SCHEMA
from orchestrator.runs.outcome import Outcome
from orchestrator.runs.rows import cause


def line(outcome: Outcome) -> str:
    """Return the line of one run, such as `ID learning_rate=1e-5 (1 of 3): done`."""
    member = next((decision.value for decision in outcome.decisions if decision.topic == ARRAY_MEMBER), "")
    reason = cause(outcome.failure) if outcome.failure else outcome.problem
    return f"{outcome.run_id} {member}: {outcome.state}{f': {reason}' if reason else ''}"


def text(outcomes: Sequence[Outcome]) -> str:
    """Return a line for each run and the command that compares them."""
    arrays = {outcome.run_id.rpartition("-")[0] for outcome in outcomes}
    return "\n".join([*map(line, outcomes), *(f"to compare them: orch runs compare {array}" for array in arrays)])


def as_json(outcomes: Sequence[Outcome], exit_code: int) -> str:
    """Return all runs and the exit code as JSON."""
    runs = [json.loads(training.as_json(outcome)) for outcome in outcomes]
    value = {"schema": SCHEMA, "kind": "array", "runs": runs, "exit_code": exit_code}
    return json.dumps(value, indent=1)


def started(plan: Plan) -> str:
    """Return a line for each run that was submitted."""
    return "\n".join(f"submitted {member.run.run_id}" for member in plan.array)


def started_as_json(plan: Plan) -> str:
    """Return the ids of the started runs as JSON."""
    run_ids = [member.run.run_id for member in plan.array]
    return json.dumps({"schema": SCHEMA, "kind": "started", "runs": run_ids}, indent=1)
