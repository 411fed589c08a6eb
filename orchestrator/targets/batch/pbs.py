"""PBS (OpenPBS and PBS Professional) as a BatchSystem: its programs, and explanations of its states and messages."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from signal import Signals
from typing import Any

from orch_node.batch.pbs import NO_OUTPUT, SYSTEM, quote_texts, time_seconds
from orch_node.protocol.batch import SCRIPT

from orchestrator.errors import ExecuteError, PlanError, RequestError
from orchestrator.load.files import read_table
from orchestrator.model.hosts import grouped
from orchestrator.model.printable import CommandResult
from orchestrator.planning.plan import SubmitScript
from orchestrator.runs.state_files import Accounting
from orchestrator.targets.batch import system
from orchestrator.targets.batch.options import PBS as ENTRY
from orchestrator.targets.batch.system import Allocation, BatchSystem, JobRequest, JobState, ListedJob, Phase, Programs
from orchestrator.targets.batch.target import BatchTarget

JOB_ID = re.compile(r"(?P<job>[0-9]{1,18}(?:\[[0-9]*\])?\.[A-Za-z0-9][\w.-]*)", re.ASCII)
MEMBER = re.compile(r"([0-9]+\[)([0-9]+)(\].*)", re.ASCII)
NO_HISTORY = "not configured to maintain job history"
# The exit codes of PBS's programs for a job that has ended, and for one that PBS does not know.
ENDED_CODE, UNKNOWN_CODE = 35, 153
QUERY = ("-f", "-F", "json")
# The user's jobs that have not ended, with the tasks of arrays; one may end meanwhile. Of several jobs, `qstat -F json`
# prints only the first.
LIST = (
    'jobs=$(qselect -u "$(id -un)" "$@") || exit; for job in $jobs; do qstat -t -f -F json "$job"\n'
    f"code=$?; case $code in 0|{ENDED_CODE}|{UNKNOWN_CODE}) ;; *) exit $code;; esac; done"
)
DOCUMENT = re.compile(r"^\{$", re.MULTILINE)
KILOBYTES = re.compile(r"([0-9]+)kb", re.ASCII)
TABLES = read_table(Path(__file__).with_name("pbs.toml"))
NEVER = "can never run"
SIGNALS = {256 + signal.value: signal.name for signal in Signals}  # by the Exit_status of a job that one has ended
NOT_STARTED = ("ended", "NOT_STARTED", "PBS could not start the job")  # for another negative Exit_status
DELETED = 91  # the substate of a job that a user has deleted


# Querying jobs.


def parse_nodes(text: str) -> list[Mapping[str, Any]]:
    """Return the resources of each vnode in the output of `pbsnodes -F json`; none if it is damaged."""
    try:
        return [dict(vnode["resources_available"]) for vnode in json.loads(text, strict=False)["nodes"].values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def listed_job(job: str, fields: Mapping[str, Any]) -> ListedJob:
    """Return an entry of the list of jobs: a job, an array, or a task of an array."""
    member, name, state = MEMBER.fullmatch(job), str(fields.get("Job_Name", "")), job_state(job, fields)
    if member is None:
        return ListedJob(job=job, name=name, state=state)
    return ListedJob(job=f"{member[1]}{member[3]}", name=name, state=state, task=member[2])


def parse_jobs(text: str) -> dict[str, dict[str, Any]]:
    """Return the jobs in the outputs of `qstat -f -F json`, by id; a login shell may print other lines.

    Raises:
        ControllerUnreachable: if the output is damaged.
    """
    listed, position, text = {}, 0, quote_texts(text)
    try:
        while start := DOCUMENT.search(text, position):
            document, position = json.JSONDecoder(strict=False).raw_decode(text, start.start())
            listed.update({str(job): dict(fields) for job, fields in document.get("Jobs", {}).items()})
    except (ValueError, AttributeError, TypeError):
        raise PBS.unreachable("the output of qstat is not JSON") from None
    return {job: fields for job, fields in listed.items() if JOB_ID.fullmatch(job)}


def job_state(job: str, fields: Mapping[str, Any]) -> JobState:
    """Return the state of a job, with explanations, from what qstat reports about it."""
    letter, comment = str(fields.get("job_state", "")), str(fields.get("comment", ""))
    if letter in ("F", "X"):
        return ended_state(job, fields, comment)
    phase = Phase(TABLES["states"].get(letter, "running"))
    can_never_run = phase == Phase.PENDING and comment.lower().startswith(NEVER)
    return JobState(
        job=job,
        state=letter,
        phase=phase,
        reason=comment or TABLES["reasons"].get(letter, ""),
        problem=f"use {TABLES['smaller_request']}" if can_never_run else "",
        start=str(fields.get("stime") or fields.get("estimated", {}).get("start_time") or ""),
        nodes=re.sub(r"/[0-9*]+", "", str(fields.get("exec_host", ""))).replace("+", ","),
    )


def ended_state(job: str, fields: Mapping[str, Any], comment: str) -> JobState:
    """Return the state of a job that has ended, with the exit code or the signal of one that failed."""
    code, reason = fields.get("Exit_status"), ""
    if fields.get("substate") == DELETED:
        phase, word, explanation = Phase.CANCELLED, "DELETED", "the job was deleted (qdel)"
    elif code is None and not fields.get("stime"):
        phase, word = Phase.ENDED, "NEVER_RAN"
        explanation = "the job never ran, for example because the job that it depends on failed"
    elif not code or not isinstance(code, int):
        phase, word, explanation = Phase.ENDED, "FINISHED", "the job ended, and its run has left no outcome"
    elif code > 0:
        phase, word, explanation = Phase.FAILED, "FAILED", "the job failed, and its run has left no outcome"
        reason = SIGNALS.get(code, f"exit code {code}")
    else:
        name, word, explanation = TABLES["endings"].get(str(code), NOT_STARTED)
        phase, reason = Phase(name), "" if str(code) in TABLES["endings"] else comment or f"Exit_status {code}"
    return JobState(job=job, state=word, phase=phase, reason=reason, explanation=explanation)


# Options of qsub.

LETTER_OF_FLAG = {system.FLAG_ON: "y", system.FLAG_OFF: "n"}  # of -r
LETTERS, ATTRIBUTES = TABLES["letters"], TABLES["attributes"]
LONG_NAMES = {**LETTERS, **TABLES["reserved_letters"]}
PREFIXES = {
    **{name: f"-{letter} " for letter, name in LETTERS.items()},
    **{name: f"-W {attribute}=" for attribute, name in ATTRIBUTES.items()},
}
NEXT_ASSIGNMENT = re.compile(r",(?=[A-Za-z_]+=)")
ARRANGEMENTS = ("free", "pack", "scatter", "vscatter")


def chunk(request: JobRequest, select: str | None) -> str:
    """Return the resources of a node: those of select= without its number of nodes, or a core for each rank.

    Raises:
        PlanError: if select= describes other nodes than the request, or fewer cores than ranks.
    """
    if not select:
        return f"ncpus={request.ppn}"
    count, _, resources = select.partition(":") if select.partition(":")[0].isdigit() else ("", "", select)
    if "+" in select or not resources or "mpiprocs=" in select:
        raise PlanError.about("select-of-nodes", select=select)
    if count and int(count) != request.nodes:
        raise PlanError.about("select-count", select=select, count=count, nodes=request.nodes, resources=resources)
    if (cores := amount_of("ncpus", select)) is not None and cores < request.ppn:
        raise PlanError.about("select-cores", select=select, ppn=request.ppn)
    return resources


def amount_of(resource: str, select: str) -> int | None:
    """Return how much of a resource select= requests of each node; None if it does not name the resource."""
    match = re.search(rf"(?:^|:){resource}=([0-9]+)(?::|$)", select)
    return int(match[1]) if match else None


def placement(value: str) -> str:
    """Return place= with each chunk on another host.

    Raises:
        PlanError: if it arranges chunks in another way.
    """
    parts = value.split(":")
    if any(part in ARRANGEMENTS and part != "scatter" for part in parts):
        raise PlanError.about("placement", place=value)
    return value if "scatter" in parts else f"scatter:{value}"


class Pbs(BatchSystem):
    """PBS: its programs, the options of qsub, and what to say about them."""

    on_nodes = SYSTEM

    submitter = "qsub"
    job_id = JOB_ID
    directive = "#PBS "
    template: Mapping[str, str] = {
        "task": "${PBS_ARRAY_INDEX-0}",
        "output": "pbs-${ORCH_JOB_RESTARTS-0}.out",
        "array_output": "pbs-${PBS_ARRAY_INDEX-0}.out",
    }
    example_option = "queue=NAME"
    gpu_hint = "Request them: --pbs select=ncpus=N:ngpus=N."
    reserved: Mapping[str, str] = TABLES["reserved"]
    flags = ("hold", "rerun")
    hardware_options = ("queue", "select")
    rejection_hint: str = TABLES["rejection_hint"]
    resubmits = True

    # pbs_tmrsh, which the job finds, starts hydra's proxies; many sites forbid ssh between their nodes.
    launcher_env: Mapping[str, str] = {"I_MPI_HYDRA_BOOTSTRAP": "rsh", "HYDRA_LAUNCHER": "rsh"}

    node_hints: Mapping[str, str] = TABLES["node_hints"]
    node_shell = "qsub -I"
    job_shell = "ssh NODE (`qstat -n {job}` lists the nodes)"
    check = "qstat -B"

    # Jobs. There is no interrupt(): qsig reaches all processes of the job on its first node.

    def submit_command(self, step: SubmitScript) -> tuple[str, ...]:
        """Return the command that submits a script.

        PBS would start a script below a login shell that a signal to the job ends, so the job is a program, bash, and
        the options are those of the script. Without -f, qsub leaves a process that holds its output open. The script
        writes its output to the folder of the run.
        """
        options = [word for line in step.options for word in shlex.split(line)]
        path = f"{step.run_dir}/{SCRIPT}"
        return ("qsub", "-f", *options, *NO_OUTPUT, "--", "/bin/bash", "-l", path, path)

    def query(self, programs: Programs, job: str) -> dict[str, Any] | None:
        """Return what qstat reports about a job, or None if PBS does not know it.

        Raises:
            ExecuteError: if PBS does not respond.
        """
        result = programs.run("qstat", "-x", *QUERY, job)
        if NO_HISTORY in result.err:
            result = programs.run("qstat", *QUERY, job)
        return parse_jobs(self.check_response(result).out).get(job)

    def state(self, programs: Programs, job: str) -> JobState:
        """Return the state of a job or of an array's task; raise ExecuteError like query."""
        fields = self.query(programs, job)
        return job_state(job, fields) if fields else self.forgotten(job)

    def jobs(self, programs: Programs, name: str = "") -> list[ListedJob]:
        """Return the user's jobs that have not ended, or only those of one name.

        Raises:
            ExecuteError: if PBS does not respond.
        """
        result = self.check_response(programs.run("sh", "-c", LIST, "sh", *(("-N", name) if name else ())))
        return [listed_job(job, fields) for job, fields in parse_jobs(result.out).items()]

    def cancel(self, programs: Programs, job: str) -> CommandResult:
        return programs.run("qdel", job)

    def is_unknown(self, result: CommandResult) -> bool:
        """Return whether a program does not know the job, or knows that it has ended."""
        return result.code in (ENDED_CODE, UNKNOWN_CODE)

    def accounting(self, programs: Programs, reported: JobState) -> Accounting | None:
        try:
            fields = self.query(programs, reported.job) or {}
        except ExecuteError:
            return None
        used = fields.get("resources_used", {})
        seconds = time_seconds(str(used.get("walltime", "")))
        if seconds is None:
            return None
        memory = KILOBYTES.fullmatch(str(used.get("mem", "")))
        return Accounting(
            source="qstat",
            job=reported.job,
            state=reported.state,
            elapsed_seconds=seconds,
            max_rss_bytes=int(memory[1]) * 1024 if memory else None,
            measured="in all",
        )

    def array_job(self, job: str, number: int) -> str:
        return job.replace("[]", f"[{number}]")

    def default_ranks(self, programs: Programs, options: Mapping[str, str], held: Allocation | None) -> tuple[int, str]:
        """Return the ranks on each node for --ppn auto, with the reason: one for each NUMA node.

        PBS knows NUMA nodes only where its cgroups hook makes a vnode of each (vnode_per_numa_node).

        Raises:
            ExecuteError: if pbsnodes cannot be started.
        """
        requested = amount_of("ncpus", options.get("select", ""))
        if requested is None:
            return system.ONE_RANK
        nodes = parse_nodes(programs.run("pbsnodes", "-a", "-F", "json").out)
        sizes = ((str(resources.get("host")), resources.get("ncpus")) for resources in nodes)
        # The vnode of the host itself has 0 CPUs.
        vnodes = grouped((host, cpus) for host, cpus in sizes if isinstance(cpus, int) and cpus > 0)
        kinds = Counter(min(cpus) for cpus in vnodes.values() if len(cpus) > 1)
        if not kinds:
            return system.ONE_RANK
        ((size, _),) = kinds.most_common(1)
        if requested % size or requested == size:
            return system.ONE_RANK
        return requested // size, f"one for each NUMA node: pbsnodes reports vnodes of {size} CPUs"

    # Options of qsub.

    def job_options(self, request: JobRequest, options: Mapping[str, str]) -> Iterator[str]:
        """Yield the options of qsub, one per line of the script.

        Raises:
            PlanError: if select= or place= does not describe one chunk on each node.
        """
        yield f"-N {shlex.quote(request.name)}"
        yield f"-l select={request.nodes}:{shlex.quote(chunk(request, options.get('select')))}:mpiprocs={request.ppn}"
        yield f"-l place={shlex.quote(placement(options.get('place', 'scatter')))}"
        rerun = options.get("rerun", system.FLAG_ON)
        yield f"-r {LETTER_OF_FLAG.get(rerun, shlex.quote(rerun))}"
        if options.get("hold", system.FLAG_OFF) != system.FLAG_OFF:
            yield "-h"
        for name, value in options.items():
            if name not in ("select", "place", *self.flags):
                prefix = PREFIXES.get(name) or f"-l {name.replace('-', '_')}="
                yield f"{prefix}{shlex.quote(value)}"
        if request.tasks:
            yield f"-J 0-{request.tasks - 1}" + (f"%{request.max_active}" if request.max_active else "")

    def long_options(self, name: str, value: str) -> Iterator[tuple[str, str]]:
        """Yield an option under its long names, such as walltime and mem for `l`, with their values.

        Raises:
            RequestError: for an attribute of -W that orch does not pass on.
        """
        if name not in ("l", "W"):
            yield LONG_NAMES.get(name, name), value
            return
        for assignment in NEXT_ASSIGNMENT.split(value):
            key, _, text = assignment.partition("=")
            if name == "W" and key not in ATTRIBUTES:
                raise RequestError.about("pbs-attribute", assignment=assignment, names=", ".join(ATTRIBUTES))
            yield ATTRIBUTES[key] if name == "W" else key, text

    def default_options(self, options: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Return the options that request whole nodes, unless an option limits the share of a node."""
        if "select" in options or "place" in options:
            return {}
        return {"place": ("scatter:excl", "whole nodes, the default; select=ncpus=N shares nodes")}

    def threads_per_rank(self, options: Mapping[str, str], ppn: int) -> int:
        """Return the cores of each rank that select= requests; 0 if it has no ncpus."""
        return (amount_of("ncpus", options.get("select", "")) or 0) // ppn

    def requested_gpus(self, options: Mapping[str, str], nodes: int) -> int:
        return amount_of("ngpus", options.get("select", "")) or 0

    def can_resume(self, options: Mapping[str, str]) -> bool:
        return options.get("rerun") != system.FLAG_OFF


PBS = Pbs(ENTRY)


def target() -> BatchTarget:
    """Return the target `--on pbs`."""
    return BatchTarget(PBS)
