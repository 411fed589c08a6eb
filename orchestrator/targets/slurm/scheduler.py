"""Slurm's own programs, on the host that has them: sbatch, squeue, scancel."""

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
from orchestrator.targets.slurm import states
from orchestrator.targets.slurm.states import JobState

SECONDS = 60.0  # a busy controller answers late
FIELDS = "%T|%S|%N|%r"
UNKNOWN = "Invalid job id"  # what squeue says of a job that Slurm has forgotten
SILENT = "the controller of Slurm does not answer"
# Settings of Slurm's programs; every other SLURM_* belongs to a job.
SLURM_SETTINGS = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_JWT")
# A job id as `sbatch --parsable` prints it, or as a wrapper without that option does.
JOB_ID = re.compile(r"(?:Submitted batch job )?([0-9]{1,18})(?:;([\w.-]+)| on cluster ([\w.-]+))?", re.ASCII)
LISTED_ID = re.compile(r"[0-9]{1,18}(?:_[0-9\[].*)?", re.ASCII)
WITH_CLUSTERS = ("squeue", "scancel", "sacct", "scontrol")  # programs that take --clusters
CLUSTER_LINE = "CLUSTER: "
AWAY = "`scontrol ping` tells whether Slurm's controller is up; the same command asks again."


class Host(Protocol):
    """What is needed of the host with Slurm's programs."""

    def put(self, path: str, content: str) -> None: ...

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult: ...


class ControllerAway(ExecuteError):
    """It may come back: jobs go on without it."""

    advice = "Jobs go on without it: try again when `sinfo` answers."


@dataclass(slots=True)
class Scheduler:
    """Slurm's programs on one host.

    Attributes:
        before: words before those of each of Slurm's programs.
        cluster: the cluster to ask, of several that one site has; '' for the host's own.
        submitted: the job that submit() has handed in.
        uncertain: submit() does not know whether Slurm has accepted the job.
    """

    host: Host
    before: tuple[str, ...] = ()
    cluster: str = ""
    submitted: str = ""
    uncertain: bool = False

    def ask(self, *words: str) -> CommandResult:
        """Raises ExecuteError."""
        program, *options = words
        cluster = (f"--clusters={self.cluster}",) if self.cluster and program in WITH_CLUSTERS else ()
        return self.host.capture((*self.before, program, *cluster, *options), seconds=SECONDS)

    def submit(self, step: SubmitScript) -> None:
        """Hand the script in. Raises ExecuteError with Slurm's words."""
        path = f"{step.run_dir}/{SCRIPT}"
        self.host.put(path, step.script)
        # What SBATCH_* said is in the script, and would win over it here.
        names = (*step_variables(step), *job_variables(os.environ))
        self.cluster = option_of(step, "clusters")
        unset = ("env", *(word for name in names for word in ("-u", name)))
        words = ("sbatch", "--parsable", f"--chdir={step.run_dir}", path, path)
        try:
            answer = self.ask(*unset, *words)
        except ExecuteError:  # Slurm may have accepted the job although its answer is lost
            self.submitted = self.living_job(option_of(step, "job-name"))
            if self.submitted:
                return
            raise
        job, cluster = job_in(answer.out) if answer.code == 0 else ("", "")
        self.cluster = cluster or self.cluster
        # A wrapper around sbatch may print anything and end with any code.
        job = job or self.living_job(option_of(step, "job-name"))
        if not job:
            raise ExecuteError(f"Slurm does not take the job: {said(answer)}", hint=hint(answer))
        self.submitted = job

    def living_job(self, name: str) -> str:
        """Return the id of this user's job with that name that has not ended, or ''."""
        try:
            answer = self.ask("squeue", "--noheader", "--me", "--all", f"--name={name}", "--format=%A|%T")
        except ExecuteError:
            answer = CommandResult(code=1, out="", err="")
        self.uncertain = answer.code != 0
        jobs: list[tuple[int, str]] = []
        cluster = self.cluster
        for line in answer.out.splitlines():
            job, _, state = line.partition("|")
            if job.isdigit() and state in states.LIVING:
                jobs.append((int(job), cluster))
            elif line.startswith(CLUSTER_LINE):  # with --clusters, before the jobs of each
                cluster = line.removeprefix(CLUSTER_LINE).strip()
        newest, self.cluster = max(jobs, default=(0, self.cluster))
        return str(newest) if newest else ""

    def state(self, job: str) -> JobState:
        """Raises ControllerAway, and ConnectionLost for a login node that is not reached."""
        if "." in job:
            return self.step_state(job)
        options = (f"--jobs={job}", "--states=all", f"--format={FIELDS}")
        # Without --all squeue hides jobs in partitions that are closed to the user.
        words = ("squeue", "--noheader", "--all", *options)
        try:
            answer = self.ask(*words)
        except ConnectionLost:
            raise
        except ExecuteError as error:
            raise ControllerAway(f"{SILENT}: {error.message}") from None
        if answer.code != 0 and UNKNOWN not in answer.err:
            raise ControllerAway(f"{SILENT}: {said(answer)}")
        found = states.parse(job, answer.out)
        state = states.unknown_state(answer.out) if answer.code == 0 else ""
        if found is None and state:
            raise ControllerAway(f"squeue reports job {job} as {state}, a state unknown to orch.")
        return found or states.gone(job)

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
            ControllerAway: if Slurm does not answer.
        """
        result = self.ask("squeue", "--noheader", "--all", "--steps", f"--jobs={job}", "--format=%i|%j")
        if result.code != 0 and UNKNOWN not in result.err:
            raise ControllerAway(f"{SILENT}: {said(result)}")
        fields = (line.strip().split("|", 1) for line in result.out.splitlines() if "|" in line)
        return {name: step for step, name in fields}

    def named(self, prefix: str) -> dict[str, JobState]:
        """The user's jobs whose names begin so, by name. Raises ExecuteError."""
        shown = ("--array", "--states=all", f"--format=%i|%j|{FIELDS}")
        words = ("squeue", "--noheader", "--me", "--all", *shown)
        answer = self.ask(*words)
        if answer.code != 0:
            raise ExecuteError(f"squeue does not answer: {said(answer)}", hint=AWAY)
        found: dict[str, JobState] = {}
        for line in answer.out.splitlines():
            job, _, rest = line.partition("|")
            name, _, fields = rest.partition("|")
            state = states.parse(job, fields)
            if state is None or not name.startswith(prefix) or not LISTED_ID.fullmatch(job):
                continue
            task = job.partition("_")[2]
            key = f"{name}-{task}" if task else name
            # A run that was resumed has several jobs: the one that lives, else the newest.
            if key not in found or order(found[key]) < order(state):
                found[key] = state
        return found

    def cancel(self, job: str, *options: str) -> None:
        """Raises ExecuteError."""
        answer = self.ask("scancel", *options, job)
        if answer.code != 0 and UNKNOWN not in answer.err:
            raise ExecuteError(f"scancel {job}: {said(answer)}", hint=AWAY)


def step_variables(step: SubmitScript) -> list[str]:
    """SBATCH_* of the options that the script has."""
    names = (
        line.split("=")[0].removeprefix("#SBATCH --")
        for line in step.script.splitlines()
        if line.startswith("#SBATCH --")
    )
    own = {"time": "TIMELIMIT", "mem": "MEM_PER_NODE"}
    return [f"SBATCH_{own.get(name) or name.upper().replace('-', '_')}" for name in names]


def job_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of a job in which orch itself runs.

    sbatch hands them on, and the programs of the new job would obey them: with SLURM_MEM_PER_CPU
    of an interactive job beside its own SLURM_MEM_PER_NODE every srun fails.
    """
    return sorted(name for name in environ if name.startswith("SLURM_") and name not in SLURM_SETTINGS)


def job_in(output: str) -> tuple[str, str]:
    """Return the only job id in sbatch's output with its cluster; '' for what it does not have.

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


def order(found: JobState) -> tuple[bool, int]:
    return not found.ended, int(found.job.partition("_")[0])


def said(answer: CommandResult) -> str:
    """Its words on one line, without the program's name before each."""
    lines = [
        line.removeprefix("sbatch: ").removeprefix("error: ")
        for line in (answer.err or answer.out).strip().splitlines()
    ]
    return "; ".join(dict.fromkeys(lines)) or f"exit code {answer.code}"


HINTS = (
    ("invalid partition", "--slurm partition=NAME; `sinfo` lists them."),
    ("invalid account", "--slurm account=NAME; `sacctmgr show assoc user=$USER` lists them."),
    ("invalid qos", "--slurm qos=NAME; `sacctmgr show qos` lists them."),
    ("invalid feature", "--slurm constraint=FEATURE; `sinfo --format='%N %f'` lists them."),
    ("time limit", "--slurm time=MINUTES, as much as the partition allows: `sinfo`."),
    (
        "node configuration is not available",
        "Fewer --nodes, or less of each node (--ppn, --slurm cpus-per-task=, mem=): "
        "`sinfo --Node --long` shows what there is.",
    ),
    ("memory specification", "--slurm mem=LESS; `sinfo --Node --long` shows what there is."),
    ("not found", "Run orch on a login node of the cluster."),
    ("no such file", "Run orch on a login node of the cluster."),
)


def hint(answer: CommandResult) -> str:
    words = said(answer).lower()
    return next((text for sign, text in HINTS if sign in words), "")
