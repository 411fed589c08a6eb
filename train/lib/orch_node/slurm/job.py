"""What the batch script of a job is: `node.py slurm RUN_DIR`, on the first node of the allocation.

It starts the agents by one step of Slurm, lays the ranks out on the cores that the job has been
given, and is the supervisor of the run, as on every target. Exit code: that of the run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orch_node import tail, whole_files
from orch_node.protocol import files, outcome, slurm, values
from orch_node.protocol.outcome import EX_TEMPFAIL, FAILED, Outcome
from orch_node.protocol.slurm import Hello, JobConfig, Submitted
from orch_node.protocol.values import ProtocolError
from orch_node.reach import BY_STEP
from orch_node.slurm import lay
from orch_node.slurm.channels import JobAgents
from orch_node.slurm.gather import STEP_LOG, GatherError, Gathering
from orch_node.slurm.local_stack import FillError, fill_nodes
from orch_node.slurm.words import STEP, VARIABLES
from orch_node.standalone import facts
from orch_node.supervisor import supervisor
from orch_node.supervisor.core_reservation import AttemptResult

# Of an earlier start of this job: it was put back into the queue.
OF_BEFORE = (files.OUTCOME, files.SUPERVISOR)


CHECKPOINT = re.compile(r"checkpoint at step ([0-9]+)", re.ASCII)
LOG_CHARACTERS = 1 << 16  # of the end of each log, in which Slurm's messages are looked for
ENDED_BY = ("SIGTERM", "SIGKILL")  # as Slurm ends processes
BATCH_STEP = "4294967291"  # what Slurm calls the step of a batch script
STEP_VARIABLE = re.compile(r"SLURM_(STEP|NTASKS|NPROCS|NNODES|TASKS_PER_NODE|DISTRIBUTION|CPU_BIND|MPI_TYPE)")
ENDED_SECONDS = 60.0  # until Slurm has ended a job that it puts back


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: node.py slurm RUN_DIR", file=sys.stderr)
        return 2
    run_dir = Path(argv[0])
    config = slurm.parse((run_dir / slurm.CONFIG).read_text())
    began = time.time()
    try:
        clear_outcome(run_dir)
        note(run_dir)
        leave_step()
        nodes = node_names()[: config.nodes + config.spare_nodes]
        if config.local:
            fill_nodes(run_dir, nodes)
        gathering = Gathering(run_dir, nodes)
    except (FillError, GatherError, OSError) as error:
        return fail(run_dir, str(error), began)
    try:
        gathering.all()
        return supervise(run_dir, config, gathering)
    except (GatherError, lay.LayError, OSError) as error:
        return fail(run_dir, str(error), began)
    finally:
        gathering.end()


def clear_outcome(run_dir: Path) -> None:
    for name in OF_BEFORE:
        (run_dir / name).unlink(missing_ok=True)
    (run_dir / files.RANKS).mkdir(mode=0o700, exist_ok=True)
    (run_dir / "claims").mkdir(mode=0o700, exist_ok=True)


def leave_step() -> None:
    """Remove what describes the step in which this program runs, if the job is not its own.

    The steps that it starts would take these variables for their options.
    """
    if os.environ.get("SLURM_STEP_ID", BATCH_STEP) != BATCH_STEP:
        for name in [name for name in os.environ if STEP_VARIABLE.match(name)]:
            del os.environ[name]


def node_names() -> list[str]:
    """The nodes of the job, in Slurm's order. Raises OSError."""
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if listed.returncode != 0 or not listed.stdout.split():
        raise OSError(f"scontrol does not tell the nodes of the job: {listed.stderr.strip()}")
    return listed.stdout.split()


def supervise(run_dir: Path, config: JobConfig, gathering: Gathering) -> int:
    hellos = [gathering.hellos[node] for node in gathering.nodes]
    lay.check(config, hellos)
    stack = Path(config.local.folder if config.local else sys.prefix)
    for name, text in lay.run_files(config, hellos, facts.libraries(stack)).items():
        whole_files.write(run_dir / name, text)
    note(run_dir, hellos)
    alone = shlex.join(["srun", *STEP, "--mpi=none", "--nodes=1", "--ntasks=1"])
    os.environ.update({**VARIABLES, **config.launcher_env, **interface(hellos), BY_STEP: alone})
    words = [str(run_dir), *config.options, "--", *lay.launcher(config, hellos[0].address)]
    open_agents = functools.partial(JobAgents, connections=gathering.connections, turn=this_turn())
    code = JobSupervisor(run_dir, supervisor.parse(words), open_agents).run()
    if code == EX_TEMPFAIL and config.requeue:
        requeue(run_dir, config.max_requeues)
    return code


def is_running() -> bool:
    """Return whether the job runs: requeueing a job that was cancelled would start it again."""
    command = ["squeue", "--noheader", "--all", "--format=%T", "--jobs", os.environ["SLURM_JOB_ID"]]
    shown = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    states = shown.stdout.split()
    return not states or "RUNNING" in states


def requeue_problem(run_dir: Path, problem: str, limit: int | None) -> str:
    """Return why the job must not go back into the queue, or ''.

    Args:
        run_dir: the run's folder, with the outcomes of earlier starts of the job.
        problem: of this start's outcome: `checkpoint at step 12`, or why there is none.
        limit: how often a job may be requeued; None for no limit.
    """
    step = checkpoint_step(problem)
    if step is None:
        return problem
    restarts = this_turn().restarts
    if limit is not None and restarts >= limit:
        return f"the job was requeued {restarts} times, as often as --slurm max-requeues allows"
    before = checkpoint_step(last_outcome(run_dir / f"outcome-{restarts - 1}.json"))
    if restarts and before is not None and step <= before:
        return f"{problem}, no later than in the last start of the job: it would never finish"
    return ""


def checkpoint_step(problem: str) -> int | None:
    match = CHECKPOINT.match(problem)
    return int(match[1]) if match else None


def last_outcome(path: Path) -> str:
    """Return the problem of an earlier start's outcome, or '' if there is none."""
    try:
        return outcome.parse(path.read_bytes()).problem or ""
    except (OSError, ProtocolError):
        return ""


class JobSupervisor(supervisor.Supervisor):
    """The supervisor of a job: it knows what Slurm says when it ends processes."""

    def finish(self, ending: AttemptResult) -> int:
        return super().finish(explained(self.run_dir, ending))


def explained(run_dir: Path, ending: AttemptResult) -> AttemptResult:
    """Return how the run ended, with the cause if Slurm says that memory ran out."""
    failure = ending.failure
    killed = failure is None or (failure.signal in ENDED_BY and not failure.oom)
    line = slurm.memory_line(slurm_output(run_dir)) if ending.state == FAILED and killed else ""
    if not line:
        return ending
    if failure is not None:
        return replace(ending, failure=replace(failure, oom=line))
    problem = f"{slurm.OUT_OF_MEMORY}: {line}"
    return replace(ending, problem=f"{problem}; {ending.problem}" if ending.problem else problem)


def slurm_output(run_dir: Path) -> str:
    """Return the last output of the steps and of the job itself."""
    outputs = (files.LAUNCHER_LOG, STEP_LOG, f"slurm-{os.environ['SLURM_JOB_ID']}.out")
    with contextlib.suppress(OSError):
        return "\n".join(tail.last_text(run_dir / name, LOG_CHARACTERS) for name in outputs)
    return ""


def requeue(run_dir: Path, limit: int | None = None) -> None:
    """Put the job back into the queue, which ends this one: it goes on from the checkpoint. One
    that has written none would make room for ever."""
    path = run_dir / files.OUTCOME
    told = outcome.parse(path.read_bytes())
    problem = requeue_problem(run_dir, told.problem or "", limit)
    if problem or not is_running():
        problem = problem or "Slurm is ending the job, as after scancel"
        print(f"no requeue: {problem}", file=sys.stderr, flush=True)
        return
    aside = run_dir / f"outcome-{os.environ.get('SLURM_RESTART_COUNT', '0')}.json"
    path.rename(aside)
    (run_dir / files.SUPERVISOR).unlink(missing_ok=True)
    command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    # Below 0 Slurm has ended it by a signal, with all of the job and before this process: it obeys.
    if done.returncode > 0:
        aside.rename(path)
        print(f"no requeue: {done.stderr.strip()}", file=sys.stderr, flush=True)
        return
    # An exit of its own would be a failure for as long as Slurm takes to put the job back.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(ENDED_SECONDS)


def interface(hellos: list[Hello]) -> dict[str, str]:
    """By which hydra's proxies reach node0."""
    if len(hellos) == 1:
        return {}
    return {"I_MPI_HYDRA_IFACE": hellos[0].interface, "HYDRA_IFACE": hellos[0].interface}


def this_turn() -> Submitted:
    """Return which job this is, and how often Slurm has started it again."""
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    return Submitted(os.environ["SLURM_JOB_ID"], restarts)


def note(run_dir: Path, hellos: Sequence[Hello] = ()) -> None:
    """Write which job it is, at which an older start of it ends, and what its nodes are."""
    loose = [one.node for one in hellos if not one.confined]
    words = f"Slurm holds no job to its cores on {', '.join(loose)}: the first ones are taken"
    told = replace(this_turn(), notes=(words,) if loose else ())
    whole_files.write(run_dir / slurm.JOB, json.dumps(values.record(told)) + "\n")


def fail(run_dir: Path, problem: str, began: float) -> int:
    """The run ends before it has begun, with the reason."""
    print(f"error: {problem}", file=sys.stderr, flush=True)
    ended = Outcome(state=FAILED, problem=problem, started=began, ended=time.time())
    try:
        whole_files.write(run_dir / files.OUTCOME, outcome.render(ended))
    except OSError as error:  # a folder that this node must not write to, or a full disk
        print(f"error: {error}", file=sys.stderr, flush=True)
    return 1
