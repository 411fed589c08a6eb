"""Slurm as a BatchSystem: its programs, the options of sbatch, and explanations of its states and messages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from orch_node import tail
from orch_node.atomic_write import private
from orch_node.batch import slurm as job_programs
from orch_node.batch.system import clock_seconds
from orch_node.protocol import files
from orch_node.protocol.batch import SCRIPT

from orchestrator.errors import ExecuteError, PlanError
from orchestrator.load.files import read_table
from orchestrator.model.printable import CommandResult
from orchestrator.planning.plan import SubmitScript
from orchestrator.runs.state_files import Accounting
from orchestrator.targets.batch import system
from orchestrator.targets.batch.options import SLURM as ENTRY
from orchestrator.targets.batch.system import Allocation, BatchSystem, JobRequest, JobState, ListedJob, Phase, Programs
from orchestrator.targets.batch.target import BatchTarget

# Settings of Slurm's programs; every other SLURM_* belongs to a job.
PROGRAM_SETTINGS = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_JWT")
# What squeue prints about a job or a task of an array: its id, its name, its state, its start, its nodes, its
# partitions, why it waits.
FIELDS = "%i|%j|%T|%S|%N|%P|%r"
LISTED_JOB = re.compile(
    r"(([0-9]{1,18})(?:_([0-9\[][^|]*))?)\|([^|]*)\|([A-Z_]+)\|([^|]*)\|([^|]*)\|([^|]*)\|(.*)", re.ASCII
)
CLUSTER_LINE = "CLUSTER: "
# A line of sinfo about equal nodes: their partition, which ends with * if it is the default, their number, the sockets,
# cores per socket and CPUs of each, and their features.
NODES_FORMAT = "%P|%D|%X|%Y|%c|%f"
NODES_LINE = re.compile(r"([^|]+)\|([0-9]+)\|([0-9]+)\|([0-9]+)\|([0-9]+)\|(.*)", re.ASCII)
FEATURES = re.compile(r"[\w.-]+(?:&[\w.-]+)*", re.ASCII)  # a constraint without alternatives and counts
ACCOUNTING_SECONDS, POLL_SECONDS = 10.0, 0.5  # Accounting responds, and learns of the end, within this time.
START_SECONDS, TICK_SECONDS = 60.0, 0.2  # squeue lists a new step within this time
END_SECONDS = 30.0  # A run ends within this time after its stop file is written.
LAST_CHARACTERS = 2000
MAX_SOCKETS = 8  # of one machine; more of them are the CPUs of a virtual machine
# The ranks get 120 s before the time limit for a checkpoint. Slurm may send the signal up to 60 s early or late.
CHECKPOINT_SECONDS = 150
WARNING = re.compile(r"(?:[BR]+:)?(?:SIG)?(?:TERM|15)(?:@[0-9]+)?", re.ASCII | re.IGNORECASE)  # values of --signal
STEP_ENDED = "STEP_ENDED"  # orch's word for a step that squeue does not list any more.
TABLES = read_table(Path(__file__).with_name("slurm.toml"))


# Submitting jobs.


def run_without(variables: Iterable[str], command: Iterable[str]) -> tuple[str, ...]:
    """Return the command that runs a command without these variables of the environment."""
    return ("env", *(word for name in variables for word in ("-u", name)), *command)


def job_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of a job in which orch itself runs.

    sbatch passes them on, and the programs of the new job would use them. For example, srun fails if
    SLURM_MEM_PER_CPU of an interactive job and SLURM_MEM_PER_NODE of the new job are both set.
    """
    return sorted(name for name in environ if name.startswith("SLURM_") and name not in PROGRAM_SETTINGS)


# Querying jobs.


def run(programs: Programs, program: str, *options: str, seconds: float = system.PROGRAM_SECONDS) -> CommandResult:
    """Run one of Slurm's programs for the cluster of the jobs."""
    cluster = (f"--clusters={programs.cluster}",) if programs.cluster else ()
    return programs.run(program, *cluster, *options, seconds=seconds)


def job_state(
    job: str, word: str, *, start: str = "", nodes: str = "", partition: str = "", reason: str = ""
) -> JobState:
    """Return a job in one of Slurm's states; one in a state that is unknown to orch has not ended."""
    phase, explanation = TABLES["states"].get(word, ("running", ""))
    plain, hint = TABLES["reasons"], ""
    reason = plain.get(word, plain.get(reason, reason))
    for entry in TABLES["pending"] if phase == "pending" else ():
        if re.match(rf"(?:{entry['pattern']})(?!\w)", reason):
            # The reason of a job with several partitions is that of one of them; it may start in another.
            hint = "" if "," in partition else entry.get("request", "")
            reason = f"{entry['meaning']} ({reason})"
            break
    return JobState(
        job=job,
        state=word,
        phase=Phase(phase),
        reason=reason,
        explanation=explanation,
        problem=hint and f"use {hint}",
        start=start if start[:1].isdigit() else "",
        nodes=nodes,
    )


# Accounting.

ACCOUNTING_FIELDS = ("JobID", "State", "Elapsed", "MaxRSS", "Start", "End")
SACCT = ("sacct", "--noheader", "--parsable2", f"--format={','.join(ACCOUNTING_FIELDS)}")
SCONTROL = ("scontrol", "show", "job", "--oneliner")
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)", re.ASCII)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SCONTROL_STATE = re.compile(r"\bJobState=(\S+) .*\bRunTime=(\S+)")


def output(programs: Programs, *command: str, seconds: float = system.PROGRAM_SECONDS) -> str:
    """Return the output of one of Slurm's programs, or '' if it fails."""
    try:
        result = run(programs, *command, seconds=seconds)
    except ExecuteError:
        return ""
    return result.out if result.code == 0 else ""


def parse_sacct(job: str, text: str) -> Accounting | None:
    """Return the record in sacct's output, which has a row for the job and one for each of its steps."""
    rows = [line.split("|") for line in text.splitlines()]
    rows = [row for row in rows if len(row) == len(ACCOUNTING_FIELDS)]
    job_row = next((row for row in reversed(rows) if row[0] == job), None)
    if job_row is None:
        return None
    _, word, elapsed, _, start, end = job_row
    # A run in an allocation starts its ranks as other steps, during its own step.
    steps = [
        row
        for row in rows
        if row[0].split(".")[0] == job.split(".")[0]
        and start <= row[4]
        and (row[5] <= end or "Unknown" in (row[5], end))
    ]
    sizes = [int(float(match[1]) * UNITS[match[2]]) for row in steps if (match := SIZE.fullmatch(row[3]))]
    # sacct writes `CANCELLED by 1000`, or `CANCELLED+` if the column is narrow.
    return Accounting(
        source="sacct",
        job=job,
        state=word.split(" ")[0].rstrip("+"),
        elapsed_seconds=time_seconds(elapsed) or 0,
        max_rss_bytes=max(sizes, default=None),
    )


def parse_scontrol(job: str, text: str) -> Accounting | None:
    """Return the record in the output of `scontrol show job`, which does not report memory."""
    match = SCONTROL_STATE.search(text)
    elapsed = time_seconds(match[2]) or 0 if match else 0
    return Accounting(source="scontrol", job=job, state=match[1], elapsed_seconds=elapsed) if match else None


def time_seconds(text: str) -> int | None:
    """Return the seconds of a time as Slurm reads and writes it, or None if it is invalid.

    The formats are MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS.
    """
    days, dash, clock = text.rpartition("-")
    first_unit = 3600 if dash or clock.count(":") == 2 else 60
    seconds, day_seconds = clock_seconds(clock, first_unit), clock_seconds(days or "0", 86_400)
    return None if seconds is None or day_seconds is None else day_seconds + seconds


# Nodes.


def node_kinds(text: str, options: Mapping[str, str]) -> Counter[tuple[int, int, int]]:
    """Return how many nodes have each number of sockets, cores per socket and CPUs, among those that a job may get."""
    matches = [match for line in text.splitlines() if (match := NODES_LINE.fullmatch(line.strip()))]
    if not options.get("partition"):
        matches = [match for match in matches if match[1].endswith("*")] or matches
    constraint = options.get("constraint", "")
    features = set(constraint.split("&")) if FEATURES.fullmatch(constraint) else set()
    kinds: Counter[tuple[int, int, int]] = Counter()
    for match in matches:
        if int(match[2]) and features <= set(match[6].split(",")):
            kinds[int(match[3]), int(match[4]), int(match[5])] += int(match[2])
    return kinds


# Options of sbatch.

# Options that limit the share of a node; without any of them the job gets whole nodes.
SIZES = ("exclusive", "cpus-per-task", "mem", "mem-per-cpu", "oversubscribe", "gres", "cores-per-socket")
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
# The variables whose option has a different name; see INPUT ENVIRONMENT VARIABLES in sbatch(1).
VARIABLES = {"TIMELIMIT": "time", "MEM_PER_NODE": "mem", "CPU_FREQ_REQ": "cpu-freq", "BURST_BUFFER": "bb"}
NOT_OPTIONS = ("WAIT", "OUTPUT", "ERROR", "JOB_NAME", "OPEN_MODE", "ARRAY_INX")
SITE_SETTINGS = ("EXPORT", "DEBUG", "REQ_SWITCH", "WAIT4SWITCH")  # left to sbatch; some have no option


def count_gpus(entries: Iterable[str]) -> int:
    """Return the sum of the numbers of GPUs in values such as `8`, `h100:8` and `a100:2(S:0)`; 1 without a number."""
    numbers = (entry.partition("(")[0].rpartition(":")[2] for entry in entries if entry)
    return sum(int(number) if number.isdecimal() else 1 for number in numbers)


class Slurm(BatchSystem):
    """Slurm: its programs, the options of sbatch, and what to say about them."""

    on_nodes = job_programs.SYSTEM
    allocation_request = "salloc"
    step_program = "srun --overlap --nodes=1 --ntasks=1 bash"

    submitter = "sbatch"
    # As `sbatch --parsable` prints it, or as a wrapper without that option does.
    job_id = re.compile(
        r"(?:Submitted batch job )?(?P<job>\d{1,18})(?:(?:;| on cluster )(?P<cluster>[\w.-]+))?", re.ASCII
    )
    directive = "#SBATCH "
    template: Mapping[str, str] = {
        "node": "${SLURMD_NODENAME-this node}",
        "task": "${SLURM_ARRAY_TASK_ID-0}",
        "output": "",
        "array_output": "slurm-${SLURM_ARRAY_JOB_ID-$SLURM_JOB_ID}_${SLURM_ARRAY_TASK_ID-0}.out",
    }
    example_option = "partition=cpu"
    gpu_hint = "Request them: --slurm gpus-per-node=N, or --slurm gres=gpu:N."
    reserved: Mapping[str, str] = TABLES["reserved"]
    flags = (
        *("contiguous", "exclusive", "hold", "ignore-pbs", "oversubscribe", "quiet", "reboot", "requeue"),
        *("spread-job", "use-min-nodes", "verbose"),
    )
    hardware_options = ("clusters", "partition", "constraint", "nodelist", "cpus-per-task")
    rejection_hint: str = TABLES["rejection_hint"]
    # Of slurm_strerror(), in src/common/slurm_errno.c.
    lost_response = re.compile(
        r"Socket timed out|Unable to contact slurm controller|Zero Bytes were|Message (?:send|receive) failure"
    )

    launcher = "srun"
    launcher_summary = "one step of Slurm for all ranks"
    # Many sites forbid ssh between their nodes.
    launcher_env: Mapping[str, str] = {"I_MPI_HYDRA_BOOTSTRAP": "slurm", "HYDRA_LAUNCHER": "slurm"}
    launcher_settings: Mapping[str, tuple[str, ...]] = {"pmi": ("auto", "none", "pmi2", "pmix")}

    node_hints: Mapping[str, str] = TABLES["node_hints"]
    node_shell = "srun --pty bash"
    job_shell = "srun --jobid={job} --overlap --pty bash"
    check = "scontrol ping"

    # Jobs.

    def submit_command(self, step: SubmitScript) -> tuple[str, ...]:
        """Return the command that submits a script; no variable of the environment changes the job.

        The script contains the values of SBATCH_* already; the variables would override it.
        """
        special_names = {option: name for name, option in VARIABLES.items()}
        options = [line.partition("=")[0].removeprefix("--") for line in step.options]
        names = [special_names.get(name) or name.upper().replace("-", "_") for name in (*options, *self.flags)]
        names = [f"SBATCH_{name}" for name in (*names, "NO_REQUEUE", *NOT_OPTIONS)]
        names = [*dict.fromkeys((*names, *(variable for _, _, variable in self.options_in(os.environ))))]
        path = f"{step.run_dir}/{SCRIPT}"
        command = ("sbatch", "--parsable", f"--chdir={step.run_dir}", path, path)
        return run_without((*names, *job_variables(os.environ)), command)

    def cluster_of(self, step: SubmitScript) -> str:
        """Return the cluster that --clusters names, or ''."""
        values = (line.partition("=")[2] for line in step.options if line.startswith("--clusters="))
        return "".join(shlex.split(next(values, "")))

    def squeue(self, programs: Programs, *options: str) -> str:
        """Return the output of squeue, which is empty if Slurm does not know the job.

        Raises:
            ExecuteError: if Slurm does not respond.
        """
        # Without --all squeue hides jobs in partitions that are closed to the user.
        return self.check_response(run(programs, "squeue", "--noheader", "--all", *options)).out

    def listed_jobs(self, programs: Programs, *options: str) -> list[ListedJob]:
        """Return the jobs and tasks of arrays that squeue lists; a login shell may print other lines.

        Raises:
            ExecuteError: if Slurm does not respond.
        """
        listed, cluster = [], programs.cluster
        for line in self.squeue(programs, "--array", "--states=all", f"--format={FIELDS}", *options).splitlines():
            if line.startswith(CLUSTER_LINE):  # With --clusters, this line precedes the jobs of each cluster.
                cluster = line.removeprefix(CLUSTER_LINE).strip()
            if match := LISTED_JOB.fullmatch(line):
                job, array, task, name, word, start, nodes, partition, reason = match.groups(default="")
                state = job_state(job, word, start=start, nodes=nodes, partition=partition, reason=reason)
                listed.append(ListedJob(job=array, task=task, name=name, state=state, cluster=cluster))
        return listed

    def jobs(self, programs: Programs, name: str = "") -> list[ListedJob]:
        return self.listed_jobs(programs, "--me", *([f"--name={name}"] if name else []))

    def state(self, programs: Programs, job: str) -> JobState:
        if "." in job:
            return self.step_state(programs, job)
        states = (listed.state for listed in self.listed_jobs(programs, f"--jobs={job}"))
        if reported := next((state for state in states if state.job == job), None):
            return reported
        # squeue may be a site's program that lists jobs with a delay, and Slurm forgets jobs earlier than accounting.
        shown = parse_scontrol(job, output(programs, *SCONTROL, job))
        record = shown or parse_sacct(job, output(programs, *SACCT, f"--jobs={job}"))
        state = job_state(job, record.state) if record else self.forgotten(job)
        return state if shown or state.ended else self.forgotten(job)

    def step_state(self, programs: Programs, step: str) -> JobState:
        """Return the state of a step of an allocation, which squeue shows only while it runs."""
        allocation = self.state(programs, step.partition(".")[0])
        if allocation.ended or allocation.phase == Phase.SUSPENDED:
            return replace(allocation, job=step)
        running = step in self.steps_of(programs, allocation.job).values()
        return job_state(step, "RUNNING" if running else STEP_ENDED)

    def steps_of(self, programs: Programs, job: str) -> dict[str, str]:
        """Return the ids of the running steps of a job, by name."""
        lines = self.squeue(programs, "--steps", f"--jobs={job}", "--format=%i|%j").splitlines()
        return {name: step for step, name in (line.strip().split("|", 1) for line in lines if "|" in line)}

    def cancel(self, programs: Programs, job: str) -> CommandResult:
        return run(programs, "scancel", job)

    def interrupt(self, programs: Programs, job: str) -> CommandResult:
        return run(programs, "scancel", "--batch", "--signal=INT", job)

    def is_unknown(self, result: CommandResult) -> bool:
        return "Invalid job id" in result.err

    def accounting(self, programs: Programs, reported: JobState) -> Accounting | None:
        """Return sacct's record of a job or a step, or scontrol's if the site has no accounting.

        Accounting learns of the end later than the controller. Only it knows how a step ended, so wait for that.
        """
        job, is_step = reported.job, "." in reported.job
        deadline = time.monotonic() + ACCOUNTING_SECONDS
        while True:
            query = (*SACCT, f"--jobs={job.partition('.')[0]}")
            record = parse_sacct(job, output(programs, *query, seconds=ACCOUNTING_SECONDS))
            if record is None and not is_step:  # Only sacct shows a step that has ended.
                record = parse_scontrol(job, output(programs, *SCONTROL, job))
            if record is None or job_state(job, record.state).ended:
                return record
            if reported.phase != Phase.FORGOTTEN and not is_step:
                return replace(record, state=reported.state)
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)

    def default_ranks(self, programs: Programs, options: Mapping[str, str], held: Allocation | None) -> tuple[int, str]:
        """Return the ranks on each node for --ppn auto, with the reason: one for each socket of whole nodes.

        Raises:
            ExecuteError: if sinfo cannot be started.
        """
        if held is None and (options.get("exclusive") != "" or "cpus-per-task" in options):
            return system.ONE_RANK
        names = {"partition": "partition", "nodelist": "nodes"}
        filters = [f"--{name}={options[option]}" for option, name in names.items() if options.get(option)]
        filters = [f"--nodes={held.nodes}"] if held else filters
        result = run(programs, "sinfo", "--noheader", "--exact", *filters, f"--format={NODES_FORMAT}")
        kinds = node_kinds(result.out, options)
        if not kinds:
            return system.ONE_RANK
        ((sockets, cores, cpus),) = [kind for kind, _ in kinds.most_common(1)]
        is_part = held is not None and min(held.node_cpus) < cpus
        # Slurm counts each CPU as a socket if slurm.conf does not describe the node.
        if is_part or cores == 1 or sockets > MAX_SOCKETS:
            return system.ONE_RANK
        most = " on most nodes" if len(kinds) > 1 else ""
        return sockets, f"one for each socket: sinfo reports {sockets} x {cores} cores{most}"

    # Steps of an allocation of salloc, or of a job that calls orch.

    def held_allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the allocation in which this program runs, or None if it runs in none."""
        job = environ.get("SLURM_JOB_ID", "")
        counts = job_programs.cpu_counts(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        if not (job.isascii() and job.isdigit() and counts and "SLURM_JOB_NODELIST" in environ):
            return None
        gpus = environ.get("SLURM_GPUS_ON_NODE") or environ.get("SLURM_GPUS_PER_NODE", "")
        return Allocation(
            job=job, node_cpus=tuple(counts), nodes=environ["SLURM_JOB_NODELIST"], gpus=count_gpus(gpus.split(","))
        )

    def start_step(self, programs: Programs, step: SubmitScript) -> str:
        """Start the script as a step on the first node of the allocation, and return its id once squeue lists it.

        The step continues when this program ends, for as long as the allocation exists.

        Raises:
            ExecuteError: if the allocation is not running, or the step ends before squeue lists it.
        """
        job = step.allocation
        state = self.state(programs, job)
        if state.phase != Phase.RUNNING:
            raise ExecuteError.about("allocation-state", job=job, state=state, system=self)
        try:
            task = job_programs.one_task_each(job_programs.SYSTEM.node_names()[:1])
        except OSError as error:
            raise ExecuteError(f"No step can start in allocation {job}: {error}", hint=self.new_job_hint) from None
        options = (f"--jobid={job}", *job_programs.STEP, *task, f"--job-name={step.name}")
        # SLURM_JOB_* describe the allocation; srun would use the others as its options.
        variables = [name for name in job_variables(os.environ) if not name.startswith("SLURM_JOB_")]
        srun = run_without(variables, ("srun", *options, "bash", f"{step.run_dir}/{SCRIPT}"))
        log = Path(step.run_dir, f"slurm-{job}.out")
        with open(log, "ab", opener=private) as file:
            process = subprocess.Popen(
                srun, cwd=step.run_dir, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        step_id, deadline = "", time.monotonic() + START_SECONDS
        try:
            while not step_id and process.poll() is None and time.monotonic() < deadline:
                time.sleep(TICK_SECONDS)
                step_id = self.steps_of(programs, job).get(step.name, "")
        finally:
            if not step_id:  # On Ctrl-C, too: nothing else could end a step whose id is unknown.
                Path(step.run_dir, files.STOP).touch(0o600)
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:  # A step without a supervisor ends at SIGTERM.
                    process.terminate()
        if not step_id:
            reason = tail.last_text(log, LAST_CHARACTERS).strip().rpartition("\n")[2] or "srun has printed nothing"
            raise ExecuteError(f"The step in allocation {job} has not started: {reason}", hint=self.new_job_hint)
        return step_id

    # Options of sbatch.

    def job_options(self, request: JobRequest, options: Mapping[str, str]) -> Iterator[str]:
        """Yield the options of sbatch, one per line of the script.

        Raises:
            PlanError: for a signal at which the run would not write a checkpoint.
        """
        yield f"--job-name={shlex.quote(request.name)}"
        yield f"--nodes={request.nodes}"
        yield f"--ntasks-per-node={request.ppn}"
        if not WARNING.fullmatch(options.get("signal", "TERM")):
            raise PlanError.about("other-signal", signal=options["signal"], seconds=CHECKPOINT_SECONDS)
        yield "--open-mode=append"
        if request.survives_nodes:
            yield "--no-kill"
        if "requeue" not in options:
            yield "--requeue"
        if "signal" not in options:  # At this signal the supervisor lets the ranks write a checkpoint.
            yield f"--signal=B:TERM@{CHECKPOINT_SECONDS}"
        for name, value in options.items():
            if name in self.flags and value == system.FLAG_OFF:
                if name == "requeue":
                    yield "--no-requeue"
            else:
                yield f"--{name}={shlex.quote(value)}" if value else f"--{name}"
        if request.tasks:
            yield f"--array=0-{request.tasks - 1}" + (f"%{request.max_active}" if request.max_active else "")

    def long_options(self, name: str, value: str) -> Iterator[tuple[str, str]]:
        """Yield an option under its long name; `no-requeue` is `requeue=no`."""
        if name.replace("_", "-") == "no-requeue":
            is_off = system.FLAG_VALUES.get(value.lower()) == system.FLAG_OFF
            yield "requeue", system.FLAG_ON if is_off else system.FLAG_OFF
        else:
            yield TABLES["letters"].get(name, name), value

    def options_in(self, environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        """Yield the options of sbatch in the environment, as (name, value, variable)."""
        for variable, value in sorted(environ.items()):
            prefix, _, name = variable.partition("_")
            if prefix == "SBATCH" and name not in (*NOT_OPTIONS, *SITE_SETTINGS):
                yield VARIABLES.get(name) or name.lower().replace("_", "-"), value, variable

    def default_options(self, options: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Return the options that request whole nodes, unless an option limits the share of a node.

        `--exclusive` alone gives all cores of a node, but only the site's default memory.
        """
        added = {}
        if not any(name in options for name in SIZES):
            added["exclusive"] = ("", "the default; cpus-per-task=N shares nodes")
        is_exclusive = added or options.get("exclusive") == ""
        if is_exclusive and not any(name in options for name in MEMORY):
            added["mem"] = ("0", "all memory of the nodes")
        return added

    def threads_per_rank(self, options: Mapping[str, str], ppn: int) -> int:
        text = options.get("cpus-per-task", "0")
        if "cpus-per-task" in options and not (text.isdigit() and int(text)):
            raise PlanError(f"{self.flag} cpus-per-task={text}: expected a number of 1 or more.")
        return int(text)

    def requested_gpus(self, options: Mapping[str, str], nodes: int) -> int:
        if "gpus-per-node" in options:
            return count_gpus(options["gpus-per-node"].split(","))
        if "gpus" in options:
            return count_gpus(options["gpus"].split(",")) // nodes
        names = (entry.removeprefix("gres/").partition(":") for entry in options.get("gres", "").split(","))
        return count_gpus(count or "1" for name, _, count in names if name == "gpu")

    def explain_option(self, name: str, options: Mapping[str, str]) -> str:
        """Return that a time limit is too short for training, or ''."""
        seconds = time_seconds(options[name]) if name == "time" else None
        if seconds is None or seconds > CHECKPOINT_SECONDS or "signal" in options:
            return ""
        return (
            f"no time for training: {CHECKPOINT_SECONDS} s of it are reserved for a checkpoint, "
            "unless --slurm signal=B:TERM@SECONDS sets less"
        )

    def can_resume(self, options: Mapping[str, str]) -> bool:
        return options.get("requeue") != system.FLAG_OFF


SLURM = Slurm(ENTRY)


def target() -> BatchTarget:
    """Return the target `--on slurm`."""
    return BatchTarget(SLURM)
