"""The steps of a plan done: a run of this machine or of nodes behind SSH begins."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from orch_node.protocol import files, outcome
from orch_node.protocol.outcome import FAILED, Outcome

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.planning.plan import Plan, StartRun
from orchestrator.runs import store
from orchestrator.runs.state_files import write_json
from orchestrator.targets.connections.connection import UNKNOWN_HOST_KEY, UNKNOWN_NAME, UNKNOWN_USER
from orchestrator.targets.execute import execute
from orchestrator.targets.ssh.nodes import connection_to

HINTS = (
    (
        UNKNOWN_HOST_KEY,
        "`orch provision` records the keys of the nodes. A node that was installed anew: find out why its key differs.",
    ),
    (UNKNOWN_USER, "Set ansible_user and ansible_ssh_private_key_file in the inventory, then run `orch provision`."),
    (UNKNOWN_NAME, "Set ansible_host in the inventory to its address, then run `orch provision`."),
)
UNANSWERED = "Is it on, and reached from here? --exclude NODE trains without it; ansible_host sets its address."


def start(plan: Plan, folder: Path) -> None:
    """Record the plan and do its steps; the run lives on without this program.

    Raises:
        ExecuteError: if a step fails. If that is before the run has begun, it is recorded as failed.
    """
    store.create(plan, folder)
    reached = {at.node: at for step in plan.steps for at in step.nodes}
    connections = {node: connection_to(at) for node, at in reached.items()}
    preparation = tuple(step for step in plan.steps if not isinstance(step, StartRun))
    beginning = tuple(step for step in plan.steps if isinstance(step, StartRun))
    try:
        try:
            execute(replace(plan, steps=preparation), connections)
        except ExecuteError as error:
            record_failure(folder, error.message)
            raise not_started(error) from None
        execute(replace(plan, steps=beginning), connections)
    finally:
        for connection in connections.values():
            connection.close()


def record_failure(folder: Path, problem: str) -> None:
    """Record a run that has not begun as failed, if that can still be written."""
    now = time.time()
    failed = Outcome(state=FAILED, problem=problem, started=now, ended=now)
    with contextlib.suppress(OSError):
        write_json(folder / files.OUTCOME, outcome.record(failed))


def not_started(error: ExecuteError) -> ExecuteError:
    """Return the error of a run that has not begun, with what to do about its nodes."""
    hints = (hint for reason, hint in HINTS if reason in error.message)
    is_lost = error.hint == ConnectionLost.advice
    hint = next(hints, UNANSWERED) if is_lost else error.hint
    return ExecuteError(f"{error.message.removesuffix('.')}; nothing was started.", hint=hint)
