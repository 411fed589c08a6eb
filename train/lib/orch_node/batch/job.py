"""Run a job of Slurm: `node.py slurm RUN_DIR`, started by the batch script on the first node.

It starts the agents as one step of Slurm, assigns the ranks to the cores of the allocation, and
supervises the run as on every other target. The exit code is that of the run.
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
from orch_node.batch import layout
from orch_node.batch.agent_connections import STEP_LOG, AgentConnectionError, AgentConnections
from orch_node.batch.channels import JobAgents, exit_if_superseded
from orch_node.batch.local_stack import FillError, fill_nodes
from orch_node.batch.step_options import STEP, VARIABLES
from orch_node.protocol import failures, files, outcome, slurm, values
from orch_node.protocol.outcome import DONE, EX_TEMPFAIL, FAILED, Outcome
from orch_node.protocol.slurm import Hello, JobConfig, Submitted
from orch_node.protocol.values import ProtocolError
from orch_node.reach import BY_STEP
from orch_node.standalone import facts
from orch_node.supervisor import supervisor
from orch_node.supervisor.core_reservation import AttemptResult

# What an earlier start of this job, before it was requeued, may have left.
EARLIER_FILES = (files.OUTCOME, files.SUPERVISOR)
DONE_BEFORE = "Slurm has restarted this job, but its run is done already; this start exits"
CHECKPOINT = re.compile(r"checkpoint at step ([0-9]+)", re.ASCII)
LOG_CHARACTERS = 1 << 16  # of the end of each log, in which Slurm's messages are looked for
ENDING_SIGNALS = ("SIGTERM", "SIGKILL")  # by which Slurm ends processes
BATCH_STEP = "4294967291"  # the id of a batch script's own step
STEP_VARIABLE = re.compile(r"SLURM_(STEP|NTASKS|NPROCS|NNODES|TASKS_PER_NODE|DISTRIBUTION|CPU_BIND|MPI_TYPE)")
REQUEUE_SECONDS = 60.0  # after which Slurm has ended a requeued job


def main(argv: list[str]) -> int:
    """Supervise the run of this job; return its exit code."""
    if len(argv) != 1:
        print("usage: node.py slurm RUN_DIR", file=sys.stderr)
        return 2
    run_dir = Path(argv[0])
    config = slurm.parse((run_dir / slurm.CONFIG).read_text())
    began = time.time()
    if is_done(run_dir):
        print(DONE_BEFORE, file=sys.stderr, flush=True)
        return 0
    try:
        clear_outcome(run_dir)
        record_job(run_dir)
        leave_outer_step()
        nodes = node_names()[: config.nodes + config.spare_nodes]
        if config.local:
            fill_nodes(run_dir, nodes)
        connections = AgentConnections(run_dir, nodes)
    except (FillError, AgentConnectionError, OSError) as error:
        return fail(run_dir, str(error), began)
    try:
        connections.accept_all()
        return supervise(run_dir, config, connections)
    except (AgentConnectionError, layout.LayoutError, OSError) as error:
        return fail(run_dir, str(error), began)
    finally:
        connections.end()


def is_done(run_dir: Path) -> bool:
    """Return whether an earlier start of this job has finished the run.

    Slurm restarts a job whose first node it has lost, also if the run ended there in the meantime.
    """
    return this_submission().restarts > 0 and recorded_outcome(run_dir / files.OUTCOME).state == DONE


def clear_outcome(run_dir: Path) -> None:
    """Delete what an earlier start of the job has left, and create missing folders."""
    for name in EARLIER_FILES:
        (run_dir / name).unlink(missing_ok=True)
    (run_dir / files.RANKS).mkdir(mode=0o700, exist_ok=True)
    (run_dir / "claims").mkdir(mode=0o700, exist_ok=True)


def leave_outer_step() -> None:
    """Remove the variables of the Slurm step in which this program runs, if there is one.

    The steps that it starts would read these variables as their options.
    """
    if os.environ.get("SLURM_STEP_ID", BATCH_STEP) != BATCH_STEP:
        for name in [name for name in os.environ if STEP_VARIABLE.match(name)]:
            del os.environ[name]


def node_names() -> list[str]:
    """Return the names of the job's nodes in Slurm's order.

    Raises:
        OSError: if scontrol does not print them.
    """
    result = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if result.returncode != 0 or not result.stdout.split():
        raise OSError(f"scontrol does not list the nodes of the job: {result.stderr.strip()}")
    return result.stdout.split()


def supervise(run_dir: Path, config: JobConfig, connections: AgentConnections) -> int:
    """Write the run's files, supervise its ranks, and requeue a preempted job."""
    hellos = [connections.hellos[node] for node in connections.nodes]
    layout.check_nodes(config, hellos)
    stack = Path(config.local.folder if config.local else sys.prefix)
    for name, text in layout.run_files(config, hellos, facts.libraries(stack)).items():
        whole_files.write(run_dir / name, text)
    record_job(run_dir, hellos)
    single_task_step = shlex.join(["srun", *STEP, "--mpi=none", "--nodes=1", "--ntasks=1"])
    os.environ.update({**VARIABLES, **config.launcher_env, **launcher_interface(hellos), BY_STEP: single_task_step})
    arguments = [str(run_dir), *config.options, "--", *layout.launcher_command(config, hellos[0].address)]
    open_agents = functools.partial(JobAgents, connections=connections.connections, turn=this_submission())
    code = JobSupervisor(run_dir, supervisor.parse(arguments), open_agents).run()
    if code == EX_TEMPFAIL and config.requeue:
        requeue(run_dir, config.max_requeues)
    return code


def is_running() -> bool:
    """Return whether the job runs: requeueing a job that was cancelled would start it again."""
    command = ["squeue", "--noheader", "--all", "--format=%T", "--jobs", os.environ["SLURM_JOB_ID"]]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    states = result.stdout.split()
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
    restarts = this_submission().restarts
    if limit is not None and restarts >= limit:
        return f"the job was requeued {restarts} times, as often as --slurm max-requeues allows"
    previous = checkpoint_step(recorded_outcome(run_dir / f"outcome-{restarts - 1}.json").problem or "")
    if restarts and previous is not None and step <= previous:
        return "the checkpoint is no later than that of the last start of the job, so the run would never finish"
    return ""


def checkpoint_step(problem: str) -> int | None:
    """Return the step of the checkpoint that an outcome names, or None."""
    match = CHECKPOINT.match(problem)
    return int(match[1]) if match else None


def recorded_outcome(path: Path) -> Outcome:
    """Return the outcome of an earlier start; its state is '' if there is none."""
    try:
        return outcome.parse(path.read_bytes())
    except (OSError, ProtocolError):
        return Outcome(state="")


class JobSupervisor(supervisor.Supervisor):
    """A supervisor that recognizes Slurm's messages about processes that ran out of memory."""

    def finish(self, ending: AttemptResult) -> int:
        """Record how the run ended; return its exit code.

        If Slurm has restarted the job meanwhile, exit and write nothing.
        """
        exit_if_superseded(self.run_dir, this_submission())
        return super().finish(explain_memory_failure(self.run_dir, ending))


def explain_memory_failure(run_dir: Path, ending: AttemptResult) -> AttemptResult:
    """Return the result with the cause if Slurm reports that memory ran out.

    Slurm may end all processes of a node, so that the only rank that reports its end is one that has
    lost its peer.
    """
    failure = ending.failure
    killed = failure is not None and failure.signal in ENDING_SIGNALS and not failure.oom
    lost_peer = failure is not None and failures.blames_another(failure.rank, failure.text)
    is_open = failure is None or killed or lost_peer
    line = slurm.memory_line(slurm_output(run_dir)) if ending.state == FAILED and is_open else ""
    if not line:
        return ending
    if failure is not None and killed:
        return replace(ending, failure=replace(failure, oom=line))
    problem = f"{slurm.OUT_OF_MEMORY}: {line}"
    problem = f"{problem}; {ending.problem}" if ending.problem else problem
    return replace(ending, problem=problem, failure=None)


def slurm_output(run_dir: Path) -> str:
    """Return the last output of the steps and of the job itself."""
    outputs = (files.LAUNCHER_LOG, STEP_LOG, job_output())
    with contextlib.suppress(OSError):
        return "\n".join(tail.last_text(run_dir / name, LOG_CHARACTERS) for name in outputs)
    return ""


def job_output() -> str:
    """Return the name of the file with the output of this job, or of this task of an array."""
    array_job = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{array_job}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array_job else os.environ["SLURM_JOB_ID"]
    return f"slurm-{job}.out"


def requeue(run_dir: Path, limit: int | None = None) -> None:
    """Put the job back into the queue, which ends this start of it.

    A job without a new checkpoint is not requeued, because it would be preempted for ever.
    """
    path = run_dir / files.OUTCOME
    recorded = outcome.parse(path.read_bytes())
    problem = requeue_problem(run_dir, recorded.problem or "", limit)
    if problem or not is_running():
        if problem not in ("", recorded.problem):
            explained = replace(recorded, problem=f"{recorded.problem}; not requeued: {problem}")
            whole_files.write(path, outcome.render(explained))
        problem = problem or "Slurm is ending the job, as after scancel"
        print(f"no requeue: {problem}", file=sys.stderr, flush=True)
        return
    aside = run_dir / f"outcome-{os.environ.get('SLURM_RESTART_COUNT', '0')}.json"
    path.rename(aside)
    (run_dir / files.SUPERVISOR).unlink(missing_ok=True)
    command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    # A negative code means that Slurm has killed scontrol with the whole job: the requeue worked.
    if result.returncode > 0:
        aside.rename(path)
        print(f"no requeue: {result.stderr.strip()}", file=sys.stderr, flush=True)
        return
    # Until Slurm has requeued the job, an exit would count as a failure of the job.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(REQUEUE_SECONDS)


def launcher_interface(hellos: list[Hello]) -> dict[str, str]:
    """Return the variables that name the network interface by which hydra's proxies reach node0."""
    if len(hellos) == 1:
        return {}
    return {"I_MPI_HYDRA_IFACE": hellos[0].interface, "HYDRA_IFACE": hellos[0].interface}


def this_submission() -> Submitted:
    """Return the number of this job, and how often Slurm has restarted it."""
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    return Submitted(os.environ["SLURM_JOB_ID"], restarts)


def record_job(run_dir: Path, hellos: Sequence[Hello] = ()) -> None:
    """Record which job this is, which ends older starts of it, and what is special about its nodes."""
    unconfined = [hello.node for hello in hellos if not hello.confined]
    text = f"Slurm does not confine jobs to their cores on {', '.join(unconfined)}; using the first cores"
    submission = replace(this_submission(), notes=(text,) if unconfined else ())
    whole_files.write(run_dir / slurm.JOB, json.dumps(values.record(submission)) + "\n")


def fail(run_dir: Path, problem: str, began: float) -> int:
    """Record a run that cannot start, with the reason; return the exit code."""
    exit_if_superseded(run_dir, this_submission())
    print(f"error: {problem}", file=sys.stderr, flush=True)
    ended = Outcome(state=FAILED, problem=problem, started=began, ended=time.time())
    try:
        whole_files.write(run_dir / files.OUTCOME, outcome.render(ended))
    except OSError as error:  # a folder that this node must not write to, or a full disk
        print(f"error: {error}", file=sys.stderr, flush=True)
    return 1
