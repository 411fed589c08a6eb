"""Start a run as a step of an allocation."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from orch_node import tail
from orch_node.batch.step_options import STEP
from orch_node.protocol import files
from orch_node.whole_files import private

from orchestrator.errors import ExecuteError
from orchestrator.planning.plan import SCRIPT, SubmitScript
from orchestrator.targets.batch.allocation import NEW_JOB_HINT
from orchestrator.targets.batch.scheduler import Scheduler, job_variables, message_of, option_of

START_SECONDS = 60.0  # Slurm lists a new step within this time.
TICK_SECONDS = 0.2
END_SECONDS = 30.0  # A run ends within this time after its stop file is written.
LAST_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class StepStarter:
    """The submitter of runs in an allocation: it starts a script as a step, not as a job.

    Attributes:
        scheduler: Slurm's programs.
    """

    scheduler: Scheduler

    def submit(self, step: SubmitScript) -> None:
        """Start the step, and set the scheduler's `submitted` to its id.

        Raises:
            ExecuteError: if the step does not start.
        """
        self.scheduler.host.put(f"{step.run_dir}/{SCRIPT}", step.script)
        self.scheduler.submitted = start_step(self.scheduler, step)


def first_node(scheduler: Scheduler, nodes: str) -> str:
    """Return the first node of a list such as `n[1-3]`.

    Raises:
        ExecuteError: if scontrol cannot expand the list.
    """
    result = scheduler.run("scontrol", "show", "hostnames", nodes)
    if result.code != 0 or not result.out.split():
        raise ExecuteError(
            f"scontrol cannot expand the allocation's nodes {nodes}: {message_of(result)}", hint=NEW_JOB_HINT
        )
    return result.out.split()[0]


def start_step(scheduler: Scheduler, step: SubmitScript) -> str:
    """Start the script as a step on the first node of the allocation, and return the step's id.

    The step continues when this program ends, for as long as the allocation exists.

    Raises:
        ExecuteError: if the allocation is not running, or srun ends before the step has started.
    """
    job, step_name = step.allocation, option_of(step, "job-name")
    state = scheduler.state(job).state
    if state != "RUNNING":
        raise ExecuteError(
            f"Allocation {job} (SLURM_JOB_ID) is not running: Slurm reports it as {state}.",
            hint=f"Run `unset SLURM_JOB_ID`, or use a new `salloc`. {NEW_JOB_HINT}",
        )
    log = Path(step.run_dir, f"slurm-{job}.out")
    node0 = first_node(scheduler, os.environ["SLURM_JOB_NODELIST"])
    options = (*STEP, "--nodes=1", "--ntasks=1", f"--nodelist={node0}", "--mpi=none")
    script = ("bash", f"{step.run_dir}/{SCRIPT}")
    command = ("srun", f"--jobid={job}", *options, f"--job-name={step_name}", *script)
    # SLURM_JOB_* describe the allocation; srun would use the others as its options.
    unset = [name for name in job_variables(os.environ) if not name.startswith("SLURM_JOB_")]
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    with open(log, "ab", opener=private) as output:
        srun = subprocess.Popen(
            command,
            cwd=step.run_dir,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        step_id = wait_for_step(scheduler, srun, job, step_name)
    except BaseException:  # On Ctrl-C, too: the step's id is still unknown, so nothing else could end it.
        end_step(srun, step.run_dir)
        raise
    if step_id:
        return step_id
    end_step(srun, step.run_dir)
    text = tail.last_text(log, LAST_CHARACTERS).strip()
    reason = text.splitlines()[-1] if text else "srun has printed nothing"
    raise ExecuteError(f"The step in allocation {job} has not started: {reason}", hint=NEW_JOB_HINT)


def wait_for_step(scheduler: Scheduler, srun: subprocess.Popen[bytes], job: str, step_name: str) -> str:
    """Return the id of the step once Slurm lists it; '' if srun ends first, or after a minute."""
    deadline = time.monotonic() + START_SECONDS
    while srun.poll() is None and time.monotonic() < deadline:
        if step_id := scheduler.steps(job).get(step_name):
            return step_id
        time.sleep(TICK_SECONDS)
    return ""


def end_step(srun: subprocess.Popen[bytes], run_dir: str) -> None:
    """End the step and the steps that it has started.

    The supervisor of the run stops at the stop file; a step without a supervisor ends at srun's SIGTERM.
    """
    Path(run_dir, files.STOP).touch(0o600)
    try:
        srun.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        srun.terminate()
