"""Do the steps of a plan to start a run on this machine or on nodes reached through SSH."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from orch_node.protocol import files
from orch_node.protocol.outcome import FAILED, STOPPED

from orchestrator.errors import ConnectionLost, ExecuteError, OrchError, RequestError
from orchestrator.files import write_whole
from orchestrator.planning.plan import Plan, StartRun
from orchestrator.runs import store
from orchestrator.runs.state_files import PLAN
from orchestrator.runs.store import Positions
from orchestrator.targets.execute import execute
from orchestrator.targets.ssh.nodes import connection_to
from orchestrator.targets.ssh.watch import copy_logs

UNREACHABLE_HINT = (
    "Check that it is on and reachable from this machine. --exclude NODE trains without it; "
    "ansible_host sets its address."
)


def start(plan: Plan, folder: Path) -> Positions | None:
    """Record the plan and do its steps; the run continues without this program.

    Returns:
        What belongs to earlier attempts of a resumed run; None for a new run.

    Raises:
        ExecuteError: if a step fails. If the run has not begun by then, it is recorded as failed,
            and as stopped if the start is interrupted.
        RequestError: if a module is missing that the script imports.
    """
    with recorded(plan, folder) as earlier:
        start_steps(plan, folder)
    return earlier


@contextlib.contextmanager
def recorded(plan: Plan, folder: Path) -> Iterator[Positions | None]:
    """Record the plan, and yield what belongs to earlier attempts of the run; remove the record of a wrong request."""
    earlier_plan = store.plan_bytes(folder)
    earlier_run = store.load(folder) if earlier_plan else None
    store.create(plan, folder)
    try:
        if earlier_run and plan.run.node0.via:
            if set(earlier_run.nodes) - {host.node for host in plan.run.nodes}:
                copy_logs(earlier_run.record, folder, None)  # of nodes that do not respond, nothing is copied
            store.move_logs(folder, earlier_run.record, plan.run)
        yield store.positions(folder) if earlier_plan else None
    except (OrchError, KeyboardInterrupt) as error:
        has_ended = isinstance(error, RequestError) or (folder / files.OUTCOME).exists()
        if earlier_plan and earlier_run and has_ended:  # the next resume continues from the earlier attempt
            write_whole(folder / PLAN, earlier_plan)
            if plan.run.node0.via:
                store.move_logs(folder, plan.run, earlier_run.record)
        elif isinstance(error, RequestError):  # as with other wrong requests, nothing is left
            shutil.rmtree(folder)
        raise


def start_steps(plan: Plan, folder: Path) -> None:
    """Do the steps of a plan.

    Raises:
        OrchError: if a step fails.
    """
    hosts = {host.node: host for step in plan.steps for host in step.nodes}
    preparation = [step for step in plan.steps if not isinstance(step, StartRun)]
    supervisor_start = [step for step in plan.steps if isinstance(step, StartRun)]
    with contextlib.ExitStack() as stack:
        connections = {
            node: stack.enter_context(contextlib.closing(connection_to(host))) for node, host in hosts.items()
        }
        try:
            execute(preparation, connections)
        except ExecuteError as error:
            store.record_end(folder, FAILED, error.message)
            raise not_started(error) from None
        except KeyboardInterrupt:
            store.record_end(folder, STOPPED)
            raise
        store.forget_end(folder)
        execute(supervisor_start, connections)


def not_started(error: ExecuteError) -> ExecuteError:
    """Return the error for a run that has not begun, with a hint for its nodes."""
    hint = UNREACHABLE_HINT if error.hint == ConnectionLost.default_hint else error.hint
    return ExecuteError(f"{error.message.removesuffix('.')}; nothing was started.", hint=hint)
