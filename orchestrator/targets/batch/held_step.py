"""Start the script of a run as a step of an allocation that the user holds."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from orch_node import tail
from orch_node.atomic_write import private
from orch_node.protocol import files

from orchestrator.errors import ExecuteError
from orchestrator.planning.plan import SubmitScript
from orchestrator.targets.batch.system import BatchSystem, HeldAllocations, Phase, Programs

START_SECONDS = 60.0  # The batch system lists a new step within this time.
TICK_SECONDS = 0.2
END_SECONDS = 30.0  # A run ends within this time after its stop file is written.
LAST_CHARACTERS = 2000


def start_step(system: BatchSystem, programs: Programs, step: SubmitScript) -> str:
    """Start the script as a step of its allocation, and return the step's id.

    The step continues when this program ends, for as long as the allocation exists.

    Raises:
        ExecuteError: if the allocation is not running, or the step ends before the batch system lists it.
    """
    held, job = system.held, step.allocation
    assert held is not None
    state = system.state(programs, job)
    if state.phase != Phase.RUNNING:
        raise ExecuteError(
            f"Allocation {job} ({held.variable}) is not running: {system.title} reports it as {state.state}.",
            hint=f"Run `unset {held.variable}`, or use a new `{held.request}`. {system.new_job_hint}",
        )
    log = Path(step.run_dir, f"{system.name}-{job}.out")
    try:
        command = held.command(step)
    except OSError as error:
        raise ExecuteError(f"No step can start in allocation {job}: {error}", hint=system.new_job_hint) from None
    with open(log, "ab", opener=private) as log_file:
        process = subprocess.Popen(
            command,
            cwd=step.run_dir,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    try:
        step_id = wait_for_step(held, programs, process, step)
    except BaseException:  # On Ctrl-C, too: the step's id is still unknown, so nothing else could end it.
        end_step(process, step.run_dir)
        raise
    if step_id:
        return step_id
    end_step(process, step.run_dir)
    text = tail.last_text(log, LAST_CHARACTERS).strip()
    reason = text.splitlines()[-1] if text else f"{system.on_nodes.starter} has printed nothing"
    raise ExecuteError(f"The step in allocation {job} has not started: {reason}", hint=system.new_job_hint)


def wait_for_step(
    held: HeldAllocations, programs: Programs, process: subprocess.Popen[bytes], step: SubmitScript
) -> str:
    """Return the id of the step once it is listed; '' if its process ends first, or after a minute."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if step_id := held.steps(programs, step.allocation).get(step.name):
            return step_id
        time.sleep(TICK_SECONDS)
    return ""


def end_step(process: subprocess.Popen[bytes], run_dir: str) -> None:
    """End the step and the steps that it has started.

    The supervisor of the run stops at the stop file; a step without a supervisor ends at SIGTERM.
    """
    Path(run_dir, files.STOP).touch(0o600)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
