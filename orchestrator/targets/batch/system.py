"""A batch system as a class: what distinguishes one from another. The rest of this package is common to all of them.

A new batch system is a module with a subclass of BatchSystem, the class of its options in options.py, a module with a
subclass of NodeSystem in orch_node/batch, and an entry in registry.py.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from orch_node.batch.system import NodeSystem
from orch_node.protocol import files

from orchestrator.errors import ExecuteError
from orchestrator.model.printable import CommandResult
from orchestrator.planning.plan import SubmitScript
from orchestrator.planning.request import TargetOptions
from orchestrator.runs.state_files import Accounting
from orchestrator.targets.entry import TargetEntry

HELD, NEW = "held", "new"  # The values of the setting `allocation`.
FLAG_ON, FLAG_OFF = "", "no"  # The values of a flag in the options of a job.
FLAG_VALUES = {
    **dict.fromkeys(("yes", "true", "1", "y"), FLAG_ON),
    **dict.fromkeys(("no", "false", "0", "n"), FLAG_OFF),
}
# Options of jobs that orch itself sets on every batch system, with a hint about each.
RESERVED_OPTIONS = {
    "nodes": "Use --nodes.",
    "python": "Use --python PATH.",
    **dict.fromkeys(("output", "error"), "The output of the job is in the run's folder."),
    "array": "Use --array KEY=VALUE,VALUE, which starts one run for each value.",
}
PROGRAM_SECONDS = 60.0  # The time limit of a program; a busy controller responds slowly.
NOT_FOUND = 127  # the exit code of a shell that does not find a program
TEMPLATE = {"node": "${HOSTNAME-this node}", "task": "0", "output": "job-0.out", "array_output": "job-0.out"}


class Phase(Enum):
    """The part of a job's life, as far as orch distinguishes it. Batch systems have more states than that."""

    PENDING = "pending"  # in the queue, or its nodes are being prepared
    RUNNING = "running"
    SUSPENDED = "suspended"  # it keeps its nodes, but its processes are stopped
    COMPLETING = "completing"  # it has its nodes, and is about to end
    CANCELLED = "cancelled"  # a user ended it
    KILLED = "killed"  # the batch system ended it: time limit, memory, preemption, a lost node
    FAILED = "failed"  # its script failed
    ENDED = "ended"  # it ended in another way, for example successfully
    FORGOTTEN = "forgotten"  # the batch system does not know it any more


# The ranks on each node for --ppn auto, with the reason, if the system does not report sockets or NUMA nodes.
ONE_RANK = (1, "the default of --ppn")
ACTIVE = (Phase.PENDING, Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job as its batch system reports it.

    Attributes:
        job: the id of the job, of an array's task or of a step in an allocation.
        state: the state in the batch system's own words, such as RUNNING; it is only shown.
        phase: the same as orch distinguishes it.
        reason: why the job is pending or how it ended, in the batch system's own words.
        explanation: how it ended, or why it is pending if the system gives no reason, in plain words.
        problem: why a pending job can never start, and what to request in its place; '' if it can start.
        start: when the job started, or is expected to.
        nodes: the nodes of the job.
    """

    job: str
    state: str
    phase: Phase
    reason: str = ""
    explanation: str = ""
    problem: str = ""
    start: str = ""
    nodes: str = ""

    @property
    def ended(self) -> bool:
        """Return whether the job has ended."""
        return self.phase not in ACTIVE

    def describe(self) -> str:
        """Return the message about the state of the job, for a run without a supervisor or without an outcome."""
        if self.phase == Phase.PENDING:
            start = f"; expected to start at {self.start}" if self.start else ""
            return f"job {self.job} waits: {self.reason or self.explanation or 'it has not been considered yet'}{start}"
        if self.phase == Phase.SUSPENDED:
            return f"job {self.job} is suspended: its processes are stopped until it is resumed"
        if self.ended:
            reason = f" ({self.reason})" if self.reason else ""
            return f"job {self.job}: {self.explanation}{reason}"
        nodes = f" on {self.nodes}" if self.nodes else ""
        return f"job {self.job} runs{nodes}: its nodes are being prepared"

    @property
    def ended_externally(self) -> bool:
        """Return whether a user or the batch system ended the job, whatever its supervisor has written."""
        return self.phase in (Phase.CANCELLED, Phase.KILLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A job of the user in the batch system's list.

    Attributes:
        job: the id of the job, or of the array, as it was returned when it was submitted.
        name: the name of the job.
        state: the state of the job, or of the array's task.
        task: the number of the array's task; '' for other jobs.
        cluster: the cluster that has it, at a site with several.
    """

    job: str
    name: str
    state: JobState
    task: str = ""
    cluster: str = ""


class Programs(Protocol):
    """The batch system's programs on the host that has them."""

    @property
    def cluster(self) -> str:
        """Return the cluster to query, at a site with several; '' for the host's default."""

    def run(self, *command: str, seconds: float = PROGRAM_SECONDS) -> CommandResult:
        """Run one of the programs within a time limit, and return its result.

        Raises:
            ExecuteError: if the program cannot be started, or does not end in time.
        """


class ControllerUnreachable(ExecuteError):
    """The error for a batch system that does not respond; jobs continue without it."""

    default_hint = "Jobs continue without it. Try again when it responds."


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A running job, as the environment of its processes describes it.

    Attributes:
        job: the id of the job.
        node_cpus: the job's CPUs on each of its nodes.
        nodes: the names of its nodes, as the system lists them.
        gpus: the number of GPUs on each node.
    """

    job: str
    node_cpus: tuple[int, ...]
    nodes: str = ""
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """The size and the name of a job.

    Attributes:
        name: the name of the job.
        nodes: the number of nodes, with the spare ones.
        ppn: the ranks on each node.
        survives_nodes: whether the run continues if the job loses a node.
        tasks: the number of runs of an array; 0 for a single run.
        max_active: the number of runs of an array that may be active at once; None for no limit.
    """

    name: str
    nodes: int
    ppn: int
    survives_nodes: bool = False
    tasks: int = 0
    max_active: int | None = None


class BatchSystem(ABC):
    """A batch system: its programs, the options and the output of its jobs, and what to say about them.

    Attributes:
        name: the name in run records, of --on and of the system's own option: slurm, pbs.
        title: the name in messages: Slurm, PBS.
        on_nodes: the system as the programs of a job use it.
        options: the class of the options of the command line: --NAME KEY=VALUE and --NAME-file.
        allocation_request: the command with which the user gets an allocation, in which runs become steps, such as
            `salloc`; '' if they cannot.
        step_program: the command that starts the script as a step, for a dry run; the script's path follows.

        submitter: the program that submits jobs, whose options --NAME takes.
        job_id: a line of its output with the id of the job as the group `job`, and its cluster as `cluster`.
        directive: what precedes an option in a script: `#SBATCH `.
        template: the values of the script's template that differ from TEMPLATE: `node` and `task` are expressions of
            the shell for the node's name and the number of an array's task, `output` and `array_output` for the file of
            the output of a job ('' if the system writes it) and of an array's task; its name matches files.JOB_OUTPUT.
        example_option: an option and its value, for hints.
        gpu_hint: how to request GPUs.
        reserved: the options that orch itself sets besides RESERVED_OPTIONS, with a hint about each.
        flags: the options that need no value; FLAG_OFF switches one off that orch itself sets.
        hardware_options: the options that select the kind of nodes and the cores of a rank, for which a measurement of
            `orch bench` holds.
        rejection_hint: what the user can do about a rejected job.
        lost_response: the submitter's messages after which the system may still accept the job.
        resubmits: whether a preempted job continues as another job, whose id it records in the run's folder.

        launcher: the launcher that starts the ranks unless a user chooses another one.
        launcher_summary: what it does, if it is a program of the system itself; '' for a launcher of all targets.
        launcher_env: the variables with which hydra starts its proxies through the system; empty to use ssh.
        launcher_settings: its settings with their values, which it gets as options; the first value is the default.

        node_hints: how to choose nodes in place of `--nodes PATTERN`, `--inventory` and `--exclude`, by the
            names of these fields.
        node_shell: the command that opens a shell on a node of the cluster.
        job_shell: the command that opens a shell in a job, with {job} for its id.
        check: the command that shows whether the system responds.

        flag: the option of the command line that takes the system's settings: `--slurm`.
        settings_file: the file of settings in the current folder.
        own_launcher: the launcher that is a program of the system itself, or '' if it has none.
        no_response: the message that the system does not respond.
        check_hint: what to do if it does not respond.
        new_job_hint: how to run in a new job instead of a held allocation.
    """

    on_nodes: NodeSystem
    allocation_request = ""
    step_program = ""

    submitter: str
    job_id = re.compile(r"(?P<job>[0-9]\S*)", re.ASCII)
    directive: str
    template: Mapping[str, str] = {}
    example_option: str
    gpu_hint = "Leave it out."
    reserved: Mapping[str, str] = {}
    flags: tuple[str, ...] = ()
    hardware_options: tuple[str, ...] = ()
    rejection_hint = ""
    lost_response = re.compile(r"(?!)")  # which matches nothing
    resubmits = False

    launcher = "mpirun"
    launcher_summary = ""
    launcher_env: Mapping[str, str] = {}
    launcher_settings: Mapping[str, tuple[str, ...]] = {}

    node_hints: Mapping[str, str] = {"nodes": "", "inventory": "Leave it out.", "exclude": "Leave it out."}
    node_shell: str
    job_shell: str
    check: str

    def __init__(self, entry: TargetEntry) -> None:
        self.name, self.title, self.options = entry.name, entry.title, entry.options
        self.flag, self.settings_file = f"--{self.name}", Path(f"orch-{self.name}.toml")
        self.own_launcher = self.launcher if self.launcher_summary else ""
        self.no_response = f"{self.title} does not respond"
        self.check_hint = f"`{self.check}` shows whether {self.title} responds. Then run the same command again."
        self.new_job_hint = f"`{self.flag} allocation={NEW}` submits a new job."

    # Jobs.

    @abstractmethod
    def submit_command(self, step: SubmitScript) -> tuple[str, ...]:
        """Return the command that submits a step's script, which is already on the host.

        The variables of the environment that would change the job must not reach it.
        """

    def parse_job_id(self, output: str) -> tuple[str, str]:
        """Return the only job id in the output of that command, and its cluster; '' for what is missing.

        A login shell or a wrapper around the program may print other lines before and after it.
        """
        matches = (self.job_id.fullmatch(line.strip()) for line in output.splitlines())
        jobs = {(match["job"], match.groupdict("").get("cluster", "")) for match in matches if match}
        return jobs.pop() if len(jobs) == 1 else ("", "")

    @abstractmethod
    def state(self, programs: Programs, job: str) -> JobState:
        """Return the state of a job; one that the system does not know is FORGOTTEN.

        Raises:
            ExecuteError: if the system does not respond.
        """

    @abstractmethod
    def jobs(self, programs: Programs, name: str) -> list[ListedJob]:
        """Return the user's jobs, or only those of one name; also jobs that have ended, as long as they are listed.

        Raises:
            ExecuteError: if the system does not respond.
        """

    @abstractmethod
    def cancel(self, programs: Programs, job: str) -> CommandResult:
        """Cancel a job; is_unknown tells from the result whether there was nothing to cancel."""

    @abstractmethod
    def is_unknown(self, result: CommandResult) -> bool:
        """Return whether a result says that the job is unknown or has ended."""

    def accounting(self, programs: Programs, reported: JobState) -> Accounting | None:
        """Return the record of a job, of an array's task or of a step that has ended, or None if the system has none.

        Args:
            programs: the system's programs.
            reported: its state as state() has returned it.
        """
        return None

    def array_job(self, job: str, number: int) -> str:
        """Return the id of an array's task, given the id of the array and the number."""
        return f"{job}_{number}"

    def cluster_of(self, step: SubmitScript) -> str:
        """Return the cluster that a step's options name, or ''."""
        return ""

    def interrupt(self, programs: Programs, job: str) -> CommandResult | None:
        """Send SIGINT to the job's script alone; None if only the stop file in the run's folder can stop a run."""
        return None

    def default_ranks(self, programs: Programs, options: Mapping[str, str], held: Allocation | None) -> tuple[int, str]:
        """Return the ranks on each node for --ppn auto, with the reason.

        Args:
            programs: the system's programs.
            options: the options of the job.
            held: the allocation that is held.
        """
        return ONE_RANK

    # Steps of allocations that the user holds.

    def held_allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the allocation that an environment describes, or None."""
        return None

    def start_step(self, programs: Programs, step: SubmitScript) -> str:
        """Start the script as a step of its allocation, and return the step's id.

        Raises:
            ExecuteError: if the allocation is not running, or the step ends before the system lists it.
        """
        raise NotImplementedError

    # Options.

    @abstractmethod
    def job_options(self, request: JobRequest, options: Mapping[str, str]) -> Iterator[str]:
        """Yield the options of a job, one for each line of the script, given its size and the user's options."""

    def long_options(self, name: str, value: str) -> Iterator[tuple[str, str]]:
        """Yield an option under its long names, with their values; other names are unchanged.

        Raises:
            RequestError: for an option that cannot be expressed by them.
        """
        yield name, value

    def is_flag(self, name: str) -> bool:
        """Return whether an option needs no value."""
        return dict(self.long_options(name, FLAG_ON)).keys() <= {*self.flags}

    def options_in(self, environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        """Yield the options in the environment, as (name, value, variable)."""
        yield from ()

    def default_options(self, options: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
        """Return the options to add if the user has not limited the share of a node, with the reason for each."""
        return {}

    def threads_per_rank(self, options: Mapping[str, str], ppn: int) -> int:
        """Return the cores that the options request for each of PPN ranks, or 0 if they leave that open.

        Raises:
            PlanError: for a value that is not a number.
        """
        return 0

    def requested_gpus(self, options: Mapping[str, str], nodes: int) -> int:
        """Return the number of GPUs that the options request for each node; 0 if they request none."""
        return 0

    def explain_option(self, name: str, options: Mapping[str, str]) -> str:
        """Return what an option means for the run if that is not obvious, or ''."""
        return ""

    def can_resume(self, options: Mapping[str, str]) -> bool:
        """Return whether a preempted job with these options starts again."""
        return False

    @cached_property
    def node_module(self) -> Mapping[str, str]:
        """Return the file with the module of `on_nodes` if that is a package's, which the nodes may lack."""
        module = inspect.getmodule(type(self.on_nodes))
        if module is None or module.__name__.startswith("orch_node."):
            return {}
        return {files.BATCH_SYSTEM: inspect.getsource(module)}

    # Words.

    def values_in(self, options: TargetOptions) -> tuple[Path | None, tuple[str, ...]]:
        """Return the values of --NAME-file and of --NAME, which are KEY=VALUE or the name of a flag."""
        return getattr(options, f"{self.name}_file"), getattr(options, self.name)

    def is_step(self, job: str) -> bool:
        """Return whether a job's id is that of a step in an allocation."""
        return bool(self.allocation_request) and "." in job

    def unreachable(self, reason: str) -> ControllerUnreachable:
        """Return the error for a system that does not respond, with the reason."""
        return ControllerUnreachable(f"{self.no_response}: {reason}")

    def check_response(self, result: CommandResult) -> CommandResult:
        """Return the result of a query.

        Raises:
            ControllerUnreachable: if the system does not respond. That it does not know a job is a response.
        """
        if result.code != 0 and not self.is_unknown(result):
            raise self.unreachable(self.message_of(result))
        return result

    def forgotten(self, job: str) -> JobState:
        """Return the state of a job that the system does not know any more."""
        explanation = f"{self.title} does not know it any more, and its run has left no outcome"
        return JobState(job=job, state="GONE", phase=Phase.FORGOTTEN, explanation=explanation)

    def message_of(self, result: CommandResult) -> str:
        """Return a program's message on one line, without the program's name before each part and without its usage."""
        printed = (result.err or result.out).strip().splitlines()
        lines = [
            line.removeprefix(f"{self.submitter}: ").removeprefix("error: ")
            for line in takewhile(lambda line: not line.lower().startswith("usage:"), printed)
        ]
        return "; ".join(dict.fromkeys(lines)) or f"exit code {result.code}"
