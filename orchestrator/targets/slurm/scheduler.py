"""Slurm's own programs, on the host that has them: sbatch, squeue, scancel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.command import Answer
from orchestrator.planning.plan import SCRIPT, SubmitScript
from orchestrator.targets.slurm import states
from orchestrator.targets.slurm.states import JobState

SECONDS = 60.0  # a busy controller answers late
FIELDS = "%T|%S|%N|%r"
UNKNOWN = "Invalid job id"  # what squeue says of a job that Slurm has forgotten
SILENT = "the controller of Slurm does not answer"
AWAY = "`scontrol ping` tells whether Slurm's controller is up; the same command asks again."


class Host(Protocol):
    """What is needed of the host with Slurm's programs."""

    def put(self, path: str, content: str) -> None: ...

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> Answer: ...


class ControllerAway(ExecuteError):
    """It may come back: jobs go on without it."""

    advice = "Jobs go on without it: try again when `sinfo` answers."


@dataclass(slots=True)
class Scheduler:
    """`before`: words before those of each of Slurm's programs; `submitted`: the job that `submit`
    has handed in."""

    host: Host
    before: tuple[str, ...] = ()
    submitted: str = ""

    def ask(self, *words: str) -> Answer:
        """Raises ExecuteError."""
        return self.host.capture((*self.before, *words), seconds=SECONDS)

    def submit(self, step: SubmitScript) -> None:
        """Hand the script in. Raises ExecuteError with Slurm's words."""
        path = f"{step.run_dir}/{SCRIPT}"
        self.host.put(path, step.script)
        # What SBATCH_* said is in the script, and would win over it here.
        unset = ("env", *(word for name in step_variables(step) for word in ("-u", name)))
        words = ("sbatch", "--parsable", f"--chdir={step.run_dir}", path)
        answer = self.ask(*unset, *words)
        # A login shell may have words of its own, before.
        job = answer.out.strip().rpartition("\n")[2].partition(";")[0]
        if answer.code != 0 or not job.isdigit():
            raise ExecuteError(f"Slurm does not take the job: {said(answer)}", hint=hint(answer))
        self.submitted = job

    def state(self, job: str) -> JobState:
        """Raises ControllerAway, and ConnectionLost for a login node that is not reached."""
        words = ("squeue", "--noheader", f"--jobs={job}", "--states=all", f"--format={FIELDS}")
        try:
            answer = self.ask(*words)
        except ConnectionLost:
            raise
        except ExecuteError as error:
            raise ControllerAway(f"{SILENT}: {error.message}") from None
        if answer.code != 0 and UNKNOWN not in answer.err:
            raise ControllerAway(f"{SILENT}: {said(answer)}")
        return states.parse(job, answer.out)

    def named(self, prefix: str) -> dict[str, JobState]:
        """The user's jobs whose names begin so, by name. Raises ExecuteError."""
        shown = ("--array", "--states=all", f"--format=%i|%j|{FIELDS}")
        words = ("squeue", "--noheader", "--me", *shown)
        answer = self.ask(*words)
        if answer.code != 0:
            raise ExecuteError(f"squeue does not answer: {said(answer)}", hint=AWAY)
        found = {}
        for line in answer.out.splitlines():
            job, _, rest = line.partition("|")
            name, _, fields = rest.partition("|")
            if name.startswith(prefix):
                task = job.partition("_")[2]
                found[f"{name}-{task}" if task else name] = states.parse(job, fields)
        return found

    def cancel(self, job: str, *options: str) -> None:
        """Raises ExecuteError."""
        answer = self.ask("scancel", *options, job)
        if answer.code != 0 and UNKNOWN not in answer.err:
            raise ExecuteError(f"scancel {job}: {said(answer)}", hint=AWAY)


def step_variables(step: SubmitScript) -> list[str]:
    """SBATCH_* of the options that the script has."""
    names = (line.split("=")[0].removeprefix("#SBATCH --")
             for line in step.script.splitlines() if line.startswith("#SBATCH --"))  # fmt: skip
    own = {"time": "TIMELIMIT", "mem": "MEM_PER_NODE"}
    return [f"SBATCH_{own.get(name) or name.upper().replace('-', '_')}" for name in names]


def said(answer: Answer) -> str:
    """Its words on one line, without the program's name before each."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in
             (answer.err or answer.out).strip().splitlines()]  # fmt: skip
    return "; ".join(dict.fromkeys(lines)) or f"exit code {answer.code}"


HINTS = (
    ("invalid partition", "--slurm partition=NAME; `sinfo` lists them."),
    ("invalid account", "--slurm account=NAME; `sacctmgr show assoc user=$USER` lists them."),
    ("invalid qos", "--slurm qos=NAME; `sacctmgr show qos` lists them."),
    ("invalid feature", "--slurm constraint=FEATURE; `sinfo --format='%N %f'` lists them."),
    ("time limit", "--slurm time=MINUTES, as much as the partition allows: `sinfo`."),
    ("node configuration is not available",
     "Fewer --nodes, or less of each: `sinfo --Node --long` shows what there is."),
    ("memory specification", "--slurm mem=LESS; `sinfo --Node --long` shows what there is."),
    ("not found", "Run orch on a login node of the cluster."),
    ("no such file", "Run orch on a login node of the cluster."),
)  # fmt: skip


def hint(answer: Answer) -> str:
    words = said(answer).lower()
    return next((text for sign, text in HINTS if sign in words), "")
