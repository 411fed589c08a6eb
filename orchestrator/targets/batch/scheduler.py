"""Run Slurm's programs sbatch, squeue and scancel on the host that has them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.command import CommandResult
from orchestrator.planning.plan import SCRIPT, SubmitScript
from orchestrator.targets.batch import states
from orchestrator.targets.batch.states import JobState

PROGRAM_SECONDS = 60.0  # The time limit of a program; a busy controller responds slowly.
FIELDS = "%T|%S|%N|%r"
UNKNOWN_JOB = "Invalid job id"  # The error of squeue for a job that Slurm does not know.
NO_RESPONSE = "the controller of Slurm does not respond"
# Settings of Slurm's programs; every other SLURM_* belongs to a job.
SLURM_SETTINGS = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_JWT")
# A job id as `sbatch --parsable` prints it, or as a wrapper without that option does.
JOB_ID = re.compile(r"(?:Submitted batch job )?([0-9]{1,18})(?:;([\w.-]+)| on cluster ([\w.-]+))?", re.ASCII)
LISTED_ID = re.compile(r"[0-9]{1,18}(?:_[0-9\[].*)?", re.ASCII)
WITH_CLUSTERS = ("squeue", "scancel", "sacct", "scontrol")  # The programs that accept --clusters.
CLUSTER_LINE = "CLUSTER: "
NO_RESPONSE_HINT = "`scontrol ping` shows whether Slurm's controller is up. Then run the same command again."


class Host(Protocol):
    """The host with Slurm's programs, as the scheduler needs it."""

    def put(self, path: str, content: str) -> None: ...

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult: ...


class ControllerUnreachable(ExecuteError):
    """The error for a controller that does not respond; jobs continue without it."""

    advice = "Jobs continue without it. Try again when `sinfo` responds."


@dataclass(slots=True)
class Scheduler:
    """Slurm's programs on one host.

    Attributes:
        host: the host with the programs.
        command_prefix: the command that starts each of the programs, such as a login shell.
        cluster: the cluster to query, at a site with several; '' for the host's default.
        submitted: the id of the job that submit() has submitted.
        uncertain: whether submit() does not know if Slurm has accepted the job.
    """

    host: Host
    command_prefix: tuple[str, ...] = ()
    cluster: str = ""
    submitted: str = ""
    uncertain: bool = False

    def run(self, *command: str) -> CommandResult:
        """Run one of the programs, and return its result.

        Raises:
            ExecuteError: if the program cannot be started, or does not end in time.
        """
        program, *options = command
        cluster = (f"--clusters={self.cluster}",) if self.cluster and program in WITH_CLUSTERS else ()
        return self.host.capture((*self.command_prefix, program, *cluster, *options), seconds=PROGRAM_SECONDS)

    def submit(self, step: SubmitScript) -> None:
        """Submit the script of a run.

        Raises:
            ExecuteError: with Slurm's message, if the job is not accepted.
        """
        path = f"{step.run_dir}/{SCRIPT}"
        self.host.put(path, step.script)
        # The script contains the values of SBATCH_* already; the variables would override the script.
        names = (*step_variables(step), *job_variables(os.environ))
        self.cluster = option_of(step, "clusters")
        unset = ("env", *(word for name in names for word in ("-u", name)))
        command = ("sbatch", "--parsable", f"--chdir={step.run_dir}", path, path)
        try:
            result = self.run(*unset, *command)
        except ExecuteError:  # Slurm may have accepted the job although its response is lost.
            self.submitted = self.find_active_job(option_of(step, "job-name"))
            if self.submitted:
                return
            raise
        job, cluster = parse_job_id(result.out) if result.code == 0 else ("", "")
        self.cluster = cluster or self.cluster
        # A wrapper around sbatch may print any text and exit with any code.
        job = job or self.find_active_job(option_of(step, "job-name"))
        if not job:
            raise ExecuteError(f"Slurm rejects the job: {message_of(result)}", hint=hint_for(result))
        self.submitted = job

    def has_accepted(self, name: str) -> bool:
        """Return whether Slurm has accepted the job of an interrupted submission; its id is then known."""
        self.submitted = self.submitted or self.find_active_job(name)
        return bool(self.submitted)

    def find_active_job(self, name: str) -> str:
        """Return the id of this user's job with a name that has not ended, or ''."""
        try:
            result = self.run("squeue", "--noheader", "--me", "--all", f"--name={name}", "--format=%A|%T")
        except ExecuteError:
            result = CommandResult(code=1, out="", err="")
        self.uncertain = result.code != 0
        jobs: list[tuple[int, str]] = []
        cluster = self.cluster
        for line in result.out.splitlines():
            job, _, state = line.partition("|")
            if job.isdigit() and state in states.ACTIVE:
                jobs.append((int(job), cluster))
            elif line.startswith(CLUSTER_LINE):  # With --clusters, this line precedes the jobs of each cluster.
                cluster = line.removeprefix(CLUSTER_LINE).strip()
        newest, self.cluster = max(jobs, default=(0, self.cluster))
        return str(newest) if newest else ""

    def state(self, job: str) -> JobState:
        """Return the state of a job, or of a step.

        Raises:
            ControllerUnreachable: if Slurm does not respond.
            ConnectionLost: if the login node cannot be reached.
        """
        if "." in job:
            return self.step_state(job)
        options = (f"--jobs={job}", "--states=all", f"--format={FIELDS}")
        # Without --all squeue hides jobs in partitions that are closed to the user.
        command = ("squeue", "--noheader", "--all", *options)
        try:
            result = self.run(*command)
        except ConnectionLost:
            raise
        except ExecuteError as error:
            raise ControllerUnreachable(f"{NO_RESPONSE}: {error.message}") from None
        if result.code != 0 and UNKNOWN_JOB not in result.err:
            raise ControllerUnreachable(f"{NO_RESPONSE}: {message_of(result)}")
        reported = states.parse(job, result.out)
        state = states.unknown_state(result.out) if result.code == 0 else ""
        if reported is None and state:
            raise ControllerUnreachable(f"squeue reports job {job} as {state}, a state unknown to orch.")
        return reported or states.forgotten(job)

    def step_state(self, step: str) -> JobState:
        """Return the state of a step of an allocation, which squeue shows only while it runs."""
        allocation = self.state(step.partition(".")[0])
        if allocation.ended or allocation.suspended:
            return replace(allocation, job=step)
        running = step in self.steps(allocation.job).values()
        return JobState(job=step, state="RUNNING" if running else states.STEP_ENDED)

    def steps(self, job: str) -> dict[str, str]:
        """Return the ids of the running steps of a job, by name.

        Raises:
            ControllerUnreachable: if Slurm does not respond.
        """
        result = self.run("squeue", "--noheader", "--all", "--steps", f"--jobs={job}", "--format=%i|%j")
        if result.code != 0 and UNKNOWN_JOB not in result.err:
            raise ControllerUnreachable(f"{NO_RESPONSE}: {message_of(result)}")
        fields = (line.strip().split("|", 1) for line in result.out.splitlines() if "|" in line)
        return {name: step for step, name in fields}

    def query_jobs(self, prefix: str) -> dict[str, JobState]:
        """Return the states of the user's jobs whose names begin with a prefix, by name.

        Raises:
            ExecuteError: if squeue fails.
        """
        columns = ("--array", "--states=all", f"--format=%i|%j|{FIELDS}")
        command = ("squeue", "--noheader", "--me", "--all", *columns)
        result = self.run(*command)
        if result.code != 0:
            raise ExecuteError(f"squeue failed: {message_of(result)}", hint=NO_RESPONSE_HINT)
        states_by_name: dict[str, JobState] = {}
        for line in result.out.splitlines():
            job, _, remainder = line.partition("|")
            name, _, fields = remainder.partition("|")
            state = states.parse(job, fields)
            if state is None or not name.startswith(prefix) or not LISTED_ID.fullmatch(job):
                continue
            task = job.partition("_")[2]
            key = f"{name}-{task}" if task else name
            # A resumed run has several jobs: use the one that has not ended, otherwise the newest.
            if key not in states_by_name or recency(states_by_name[key]) < recency(state):
                states_by_name[key] = state
        return states_by_name

    def cancel(self, job: str, *options: str) -> None:
        """Cancel a job; a job that Slurm does not know is ignored.

        Raises:
            ExecuteError: if scancel fails.
        """
        result = self.run("scancel", *options, job)
        if result.code != 0 and UNKNOWN_JOB not in result.err:
            raise ExecuteError(f"scancel {job} failed: {message_of(result)}", hint=NO_RESPONSE_HINT)


def step_variables(step: SubmitScript) -> list[str]:
    """Return the SBATCH_* variables of the options that the script sets."""
    names = (
        line.split("=")[0].removeprefix("#SBATCH --")
        for line in step.script.splitlines()
        if line.startswith("#SBATCH --")
    )
    special_names = {"time": "TIMELIMIT", "mem": "MEM_PER_NODE"}
    return [f"SBATCH_{special_names.get(name) or name.upper().replace('-', '_')}" for name in names]


def job_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of a job in which orch itself runs.

    sbatch passes them on, and the programs of the new job would use them. For example, srun fails if
    SLURM_MEM_PER_CPU of an interactive job and SLURM_MEM_PER_NODE of the new job are both set.
    """
    return sorted(name for name in environ if name.startswith("SLURM_") and name not in SLURM_SETTINGS)


def parse_job_id(output: str) -> tuple[str, str]:
    """Return the only job id in sbatch's output, and its cluster; '' for what is missing.

    A login shell or a wrapper around sbatch may print other lines before and after it.
    """
    matches = (JOB_ID.fullmatch(line.strip()) for line in output.splitlines())
    jobs = {(match[1], match[2] or match[3] or "") for match in matches if match}
    return jobs.pop() if len(jobs) == 1 else ("", "")


def option_of(step: SubmitScript, name: str) -> str:
    """Return the value of an option of sbatch in the script, or '' if it does not have it."""
    lines = step.script.splitlines()
    prefix = f"#SBATCH --{name}="
    values = (shlex.split(line.removeprefix(prefix)) for line in lines if line.startswith(prefix))
    return next((value[0] for value in values if value), "")


def recency(state: JobState) -> tuple[bool, int]:
    """Return the sort key of a job: jobs that have not ended come last, then the newest."""
    return not state.ended, int(state.job.partition("_")[0])


def message_of(result: CommandResult) -> str:
    """Return a program's message on one line, without the program's name before each part."""
    lines = [
        line.removeprefix("sbatch: ").removeprefix("error: ")
        for line in (result.err or result.out).strip().splitlines()
    ]
    return "; ".join(dict.fromkeys(lines)) or f"exit code {result.code}"


HINTS = (
    ("invalid partition", "Use --slurm partition=NAME; `sinfo` lists partitions."),
    ("permitted to use this partition", "--slurm partition=ANOTHER; `sinfo` lists those that are open to you."),
    ("invalid account", "Use --slurm account=NAME; `sacctmgr show assoc user=$USER` lists your accounts."),
    ("invalid qos", "Use --slurm qos=NAME; `sacctmgr show qos` lists the QOS."),
    ("invalid feature", "Use --slurm constraint=FEATURE; `sinfo --format='%N %f'` lists features."),
    ("time limit", "Use --slurm time=MINUTES, at most what the partition allows (`sinfo`)."),
    (
        "node configuration is not available",
        "Use fewer --nodes, or less of each node (--ppn, --slurm cpus-per-task=, mem=): "
        "`sinfo --Node --long` shows the resources of nodes.",
    ),
    ("memory specification", "Use --slurm mem=LESS; `sinfo --Node --long` shows the memory of nodes."),
    ("not found", "Run orch on a login node of the cluster."),
    ("no such file", "Run orch on a login node of the cluster."),
)


def hint_for(result: CommandResult) -> str:
    """Return what the user can do about sbatch's message, or ''."""
    message = message_of(result).lower()
    return next((text for sign, text in HINTS if sign in message), "")
