"""Run a job of a batch system: `node.py job RUN_DIR`, started by the job's script on the first node.

It starts the agents on the job's nodes, assigns the ranks to the cores that the job has there, and
supervises the run as on every other target. The exit code is that of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orch_node import atomic_write, tail
from orch_node.batch import layout
from orch_node.batch.agents import STEP_LOG, AgentConnections, JobAgents, exit_if_superseded
from orch_node.batch.system import JobError, NodeSystem, find_system
from orch_node.protocol import batch, failures, files, outcome, values
from orch_node.protocol.batch import Hello, JobConfig
from orch_node.protocol.events import Launched, parse_line
from orch_node.protocol.node_names import fold
from orch_node.protocol.outcome import DONE, ENDING_SIGNALS, EX_TEMPFAIL, FAILED, Outcome
from orch_node.standalone import facts
from orch_node.supervisor import supervisor
from orch_node.supervisor.agents import Agents

CHECKPOINT = re.compile(r"checkpoint at step ([0-9]+)", re.ASCII)
LOG_CHARACTERS = 1 << 16  # of the end of each log, in which the batch system's messages are looked for


def main(argv: list[str]) -> int:
    """Supervise the run of this job; return its exit code."""
    run_dir = Path(argv[0])
    config = batch.parse((run_dir / batch.CONFIG).read_text())
    system = find_system(config)
    began = time.time()
    if is_done(system, run_dir):
        message = f"{system.title} has restarted this job, but its run is done already; this start exits"
        print(message, file=sys.stderr, flush=True)
        return 0
    try:
        os.chdir(run_dir)  # where the ranks start
        for name in (files.OUTCOME, files.SUPERVISOR):  # of an earlier start of the job
            (run_dir / name).unlink(missing_ok=True)
        for folder in (files.RANKS, "claims"):
            (run_dir / folder).mkdir(mode=0o700, exist_ok=True)
        record_job(system, run_dir)
        system.prepare()
        nodes = system.node_names()[: config.nodes + config.spare_nodes]
        with contextlib.closing(AgentConnections(system, run_dir, nodes)) as connections:
            connections.accept_all()
            return supervise(run_dir, config, connections)
    except (JobError, OSError) as error:
        return fail(system, run_dir, str(error), began)


def is_done(system: NodeSystem, run_dir: Path) -> bool:
    """Return whether an earlier start of this job has finished the run.

    A batch system restarts a job whose first node it has lost, also if the run ended there in the meantime.
    """
    return system.submission().restarts > 0 and recorded_outcome(run_dir / files.OUTCOME).state == DONE


def supervise(run_dir: Path, config: JobConfig, connections: AgentConnections) -> int:
    """Write the run's files, supervise its ranks, and requeue a preempted job."""
    system = connections.system
    hellos = [connections.channels[node].hello for node in connections.nodes]
    layout.check_nodes(system, config, hellos)
    for name, text in layout.run_files(config, hellos, facts.libraries(Path(sys.prefix))).items():
        atomic_write.write(run_dir / name, text)
    record_job(system, run_dir, hellos)
    os.environ.update({**system.launcher_environment(), **config.launcher_env, **hydra_variables(hellos)})
    launcher = [word.replace(batch.NODE0, hellos[0].address) for word in config.launcher]
    options = supervisor.parse([str(run_dir), *config.options, "--", *launcher])
    options.first_attempt = max(options.first_attempt, last_attempt(run_dir / files.EVENTS) + 1)
    code = JobSupervisor(connections, run_dir, options).run()
    if code == EX_TEMPFAIL and config.requeue:
        requeue(system, run_dir, config.max_requeues)
    return code


def last_attempt(log: Path) -> int:
    """Return the number of the last attempt that earlier starts of the job have recorded; 0 if there is none."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        lines = (line for line in file if f'"{Launched.kind}"'.encode() in line)
        return max((event.attempt for event in map(parse_line, lines) if isinstance(event, Launched)), default=0)
    return 0


def requeue_problem(system: NodeSystem, run_dir: Path, problem: str, limit: int | None) -> str:
    """Return why the job must not go back into the queue, or ''.

    Args:
        system: the batch system.
        run_dir: the run's folder, with the outcomes of earlier starts of the job.
        problem: of this start's outcome: `checkpoint at step 12`, or why there is none.
        limit: how often a job may be requeued; None for no limit.
    """
    step = checkpoint_step(problem)
    if step is None:
        return problem
    restarts = system.submission().restarts
    if limit is not None and restarts >= limit:
        return f"the job was requeued {restarts} times, as often as --{system.name} max-requeues allows"
    previous = checkpoint_step(recorded_outcome(run_dir / f"outcome-{restarts - 1}.json").problem or "")
    if restarts and previous is not None and step <= previous:
        return "the checkpoint is not newer than that of the previous start, so the run would never finish"
    return "" if system.is_running() else f"{system.title} is ending the job"


def checkpoint_step(problem: str) -> int | None:
    """Return the step of the checkpoint that an outcome names, or None."""
    match = CHECKPOINT.match(problem)
    return int(match[1]) if match else None


def recorded_outcome(path: Path) -> Outcome:
    """Return the outcome of an earlier start; its state is '' if there is none."""
    return values.load(outcome.parse, path) or Outcome(state="")


class JobSupervisor(supervisor.Supervisor):
    """A supervisor that recognizes the batch system's messages about processes that ran out of memory."""

    def __init__(self, connections: AgentConnections, run_dir: Path, options: argparse.Namespace) -> None:
        self.connections = connections
        super().__init__(run_dir, options)

    def open_agents(self, nodes: list[str], claims: str) -> Agents:
        return JobAgents(self.run_dir, nodes, claims, connections=self.connections)

    def finish(self, ending: Outcome) -> int:
        """Record how the run ended; return its exit code.

        If the job was restarted meanwhile, exit and write nothing.
        """
        exit_if_superseded(self.connections.system, self.run_dir)
        return super().finish(explain_memory_failure(self.connections.system, self.run_dir, ending))


def explain_memory_failure(system: NodeSystem, run_dir: Path, ending: Outcome) -> Outcome:
    """Return the result with the cause if the batch system reports that memory ran out.

    It may end all processes of a node, so that the only rank that reports its end is one that has
    lost its peer.
    """
    failure = ending.first_failure
    killed = failure is not None and failure.signal in ENDING_SIGNALS and not failure.oom
    lost_peer = failure is not None and failures.blames_another(failure.rank, failure.text)
    is_open = failure is None or killed or lost_peer
    line = system.memory_line(job_output(run_dir)) if ending.state == FAILED and is_open else ""
    if not line:
        return ending
    if failure is not None and killed:
        return replace(ending, first_failure=replace(failure, oom=line))
    problems = filter(None, (f"{system.out_of_memory}: {line}", ending.problem))
    return replace(ending, problem="; ".join(problems), first_failure=None)


def job_output(run_dir: Path) -> str:
    """Return the last output of the launcher, of the agents and of the job itself."""
    with contextlib.suppress(OSError):
        outputs = (files.LAUNCHER_LOG, STEP_LOG, files.newest(os.listdir(run_dir), files.JOB_OUTPUT))
        return "\n".join(tail.last_text(run_dir / name, LOG_CHARACTERS) for name in outputs if name)
    return ""


def requeue(system: NodeSystem, run_dir: Path, limit: int | None = None) -> None:
    """Make the job start again later, which ends this start of it.

    A job without a new checkpoint is not requeued, because it would be preempted for ever.
    """
    path = run_dir / files.OUTCOME
    recorded = outcome.parse(path.read_bytes())
    problem = requeue_problem(system, run_dir, recorded.problem or "", limit)
    if not problem:
        aside = run_dir / f"outcome-{system.submission().restarts}.json"
        path.rename(aside)
        (run_dir / files.SUPERVISOR).unlink(missing_ok=True)
        problem = system.requeue(run_dir)
        if not problem:
            return
        aside.rename(path)
    if problem != recorded.problem:
        explained = replace(recorded, problem=f"{recorded.problem}; not requeued: {problem}")
        atomic_write.write(path, outcome.render(explained))
    print(f"no requeue: {problem}", file=sys.stderr, flush=True)


def hydra_variables(hellos: list[Hello]) -> dict[str, str]:
    """Return the variables with which hydra starts its proxies on several nodes.

    They name the interface by which the proxies reach node0, and have node0 start all of them: whether
    a proxy on another node may start further ones depends on the batch system and its site.
    """
    if len(hellos) == 1:
        return {}
    interface = hellos[0].interface
    return {"I_MPI_HYDRA_IFACE": interface, "I_MPI_HYDRA_BRANCH_COUNT": str(len(hellos)), "HYDRA_IFACE": interface}


def record_job(system: NodeSystem, run_dir: Path, hellos: Sequence[Hello] = ()) -> None:
    """Record which job this is, which ends older starts of it, and what is special about its nodes."""
    unconfined = [hello.node for hello in hellos if not hello.confined]
    text = f"{system.title} does not confine jobs to their cores on {fold(unconfined)}, so ranks are not bound to cores"
    submission = replace(system.submission(), notes=(text,) if unconfined else ())
    atomic_write.write(run_dir / batch.job_file(system.name), f"{values.render(submission)}\n")


def fail(system: NodeSystem, run_dir: Path, problem: str, began: float) -> int:
    """Record a run that cannot start, with the reason; return the exit code."""
    exit_if_superseded(system, run_dir)
    print(f"error: {problem}", file=sys.stderr, flush=True)
    ended = Outcome(state=FAILED, problem=problem, started=began, ended=time.time())
    try:
        atomic_write.write(run_dir / files.OUTCOME, outcome.render(ended))
    except OSError as error:  # a folder that this node must not write to, or a full disk
        print(f"error: {error}", file=sys.stderr, flush=True)
    return 1
