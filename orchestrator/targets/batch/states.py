"""Describe what Slurm reports about a job: its state, why it is pending and how it ended. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

PENDING = (
    "PENDING",
    "CONFIGURING",
    "POWER_UP_NODE",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
)
SUSPENDED = ("SUSPENDED", "STOPPED")  # The job keeps its nodes, but its processes are stopped.
ACTIVE = (
    *PENDING,
    *SUSPENDED,
    "RUNNING",
    "COMPLETING",
    "STAGE_OUT",
    "SIGNALING",
    "RESIZING",
    "EXPEDITING",
    "UPDATE_DB",
)
# Explanations of temporary reasons; see JOB REASON CODES in squeue(1).
TEMPORARY_REASONS = {
    "None": "Slurm has not considered it yet",
    "Priority": "jobs with a higher priority come first",
    "Resources": "not enough nodes are free",
    "Dependency": "it waits for another job",
    "BeginTime": "its start is delayed, for example by two minutes after a requeue",
    "JobArrayTaskLimit": "the array has reached its limit of active runs (%N)",
    "Licenses": "a licence that it needs is in use",
    "Reservation": "its reservation has not begun",
    "ReqNodeNotAvail": "a node that it requests is down, drained or reserved",
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions": (
        "nodes that it needs are down, drained or reserved"
    ),
    "JobHeldUser": "it is held: `scontrol release` releases it",
    "JobHeldAdmin": "an administrator holds it",
    "launch_failed_requeued_held": "its start failed; `scontrol release` releases it",
    "QOSMaxJobsPerUserLimit": "you have as many jobs running as your QOS allows",
    "QOSMaxCpuPerUserLimit": "your jobs use all CPUs that your QOS allows",
    "QOSMaxNodePerUserLimit": "your jobs use all nodes that your QOS allows",
    "QOSGrpCpuLimit": "jobs of this QOS use all CPUs that it allows",
    "QOSGrpNodeLimit": "jobs of this QOS use all nodes that it allows",
    "QOSJobLimit": "this QOS has as many jobs as it allows",
    "QOSResourceLimit": "jobs of this QOS use all resources that it allows",
    "AssocMaxJobsLimit": "your account has as many jobs running as allowed",
    "AssocGrpCpuLimit": "jobs of your account use all CPUs that it may use",
    "AssocGrpNodeLimit": "jobs of your account use all nodes that it may use",
    "AssociationJobLimit": "your account has as many jobs as allowed",
    "MaxJobsPerAccount": "your account has as many jobs as allowed",
    "Cleaning": "its previous processes are still being cleaned up",
    "PartitionDown": "its partition accepts no jobs now",
}
# Permanent reasons: why the job cannot start, and what to request in its place.
PERMANENT_REASONS = {
    "PartitionConfig": (
        "its partition does not have the requested resources, or is not open to you",
        "fewer --nodes, fewer ranks on each (--ppn), less time, or --slurm partition=ANOTHER",
    ),
    "PartitionNodeLimit": ("its partition does not allow so many nodes per job", "fewer --nodes"),
    "PartitionTimeLimit": ("its partition does not allow jobs this long", "--slurm time=LESS"),
    "PartitionInactive": ("its partition is inactive", "--slurm partition=ANOTHER"),
    "BadConstraints": ("no nodes can fulfil its request", "other --slurm constraint=, cpus-per-task=, mem="),
    "InvalidAccount": ("its account is not valid", "--slurm account=ANOTHER"),
    "InvalidQOS": ("its QOS is not valid", "--slurm qos=ANOTHER"),
    "AccountNotAllowed": ("its partition does not accept its account", "--slurm account=ANOTHER"),
    "QOSNotAllowed": ("its partition does not accept its QOS", "--slurm qos=ANOTHER"),
    "AssocMaxNodePerJobLimit": ("its account does not allow so many nodes per job", "fewer --nodes"),
    "AssocMaxCpuPerJobLimit": ("its account does not allow so many CPUs per job", "fewer --nodes"),
    "AssocMaxWallDurationPerJobLimit": ("its account does not allow jobs this long", "--slurm time=LESS"),
    "QOSMaxNodePerJobLimit": ("its QOS does not allow so many nodes per job", "fewer --nodes"),
    "QOSMaxCpuPerJobLimit": ("its QOS does not allow so many CPUs per job", "fewer --nodes"),
    "QOSMaxWallDurationPerJobLimit": ("its QOS does not allow jobs this long", "--slurm time=LESS"),
    "DependencyNeverSatisfied": ("the job that it waits for has failed", "no --slurm dependency"),
    "ReservationDeleted": ("its reservation was deleted", "no --slurm reservation"),
}
# Newer versions of Slurm give a sentence as the reason that a partition is closed to a group, an account or a QOS.
CLOSED_PARTITION = "permitted to use this partition"
CLOSED_PARTITION_PROBLEM = ("its partition is not open to you", "another --slurm partition=, account= or qos=")
STEP_ENDED = "STEP_ENDED"  # The state of a run in an allocation whose step squeue does not list.
ENDINGS = {
    "CANCELLED": "the job was cancelled (scancel)",
    "TIMEOUT": "the job reached its time limit (--slurm time=)",
    "DEADLINE": "the job passed its deadline",
    "PREEMPTED": "the job was preempted",
    "NODE_FAIL": "a node of the job failed",
    "BOOT_FAIL": "a node of the job did not boot",
    "OUT_OF_MEMORY": "the job ran out of memory (--slurm mem=)",
    "COMPLETED": "the job ended, and its run has left no outcome",
    STEP_ENDED: "its step in the allocation ended, and its run has left no outcome",
    "FAILED": "the job failed, and its run has left no outcome",
}
ALL_STATES = frozenset((*ACTIVE, *ENDINGS, "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"))
STATE_WORD = re.compile(r"[A-Z]{4,}(?:_[A-Z]+)*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job as squeue reports it.

    Attributes:
        job: the id of the job, of an array's task or of a step.
        state: the state, such as RUNNING.
        reason: why the job is pending, or why it failed.
        start: when the job started, or is expected to.
        nodes: the nodes of the job.
    """

    job: str
    state: str
    reason: str = ""
    start: str = ""
    nodes: str = ""

    @property
    def pending(self) -> bool:
        """Return whether the job is in the queue or its nodes are being prepared."""
        return self.state in PENDING

    @property
    def suspended(self) -> bool:
        """Return whether the job keeps its nodes while its processes are stopped."""
        return self.state in SUSPENDED

    @property
    def ended(self) -> bool:
        """Return whether the job has ended."""
        return self.state not in ACTIVE

    @property
    def ended_externally(self) -> bool:
        """Return whether the job was ended by something outside of the run."""
        return self.state in ENDED_EXTERNALLY


# States of jobs that Slurm or a user ended, no matter which outcome the supervisor has written.
ENDED_EXTERNALLY = ("CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY")
FORGOTTEN = "GONE"  # The state of a job that Slurm does not know.


def parse(job: str, text: str) -> JobState | None:
    """Return the state in the output of `squeue --format=%T|%S|%N|%r`, or None if it has none.

    A login shell may print other lines, also with `|` in them, so only lines that begin with a state of
    Slurm count.
    """
    for line in text.splitlines():
        state, bar, fields = line.partition("|")
        if state in ALL_STATES and bar and fields.count("|") >= 2:
            start, nodes, reason = fields.split("|", 2)
            return JobState(job=job, state=state, reason=reason, start=start, nodes=nodes)
    return None


def forgotten(job: str) -> JobState:
    """Return the state of a job that Slurm does not know any more."""
    return JobState(job=job, state=FORGOTTEN)


def unknown_state(text: str) -> str:
    """Return the state in squeue's output that this version of orch does not know, or ''."""
    fields = [line.split("|") for line in text.splitlines() if line.count("|") >= 3]
    return next((columns[0] for columns in fields if STATE_WORD.fullmatch(columns[0])), "")


def reason_code(job: JobState) -> str:
    """Return the reason code alone: `ReqNodeNotAvail` of `ReqNodeNotAvail, UnavailableNodes:n[1-3]`."""
    return job.reason.split(",")[0].strip().replace(" ", "_")


def describe_waiting(job: JobState) -> str:
    """Return the message that a job is pending, with the reason and the expected start."""
    if job.state == "CONFIGURING":
        return f"job {job.job}: its nodes are being prepared"
    reason = reason_code(job)
    explanation = TEMPORARY_REASONS.get(job.reason) or TEMPORARY_REASONS.get(reason) or permanent_problem(job)
    cause = f"{explanation} ({job.reason})" if explanation else job.reason
    start = f"; expected to start at {job.start}" if job.start[:1].isdigit() else ""
    return f"job {job.job} waits: {cause}{start}"


def describe_suspension(job: str) -> str:
    """Return the message that a job is suspended."""
    return f"job {job} is suspended: its processes are stopped until Slurm resumes it"


def describe_start(job: JobState) -> str:
    """Return the message that a job runs but its supervisor has not started yet."""
    nodes = f" on {job.nodes}" if job.nodes else ""
    return f"job {job.job} runs{nodes}: its nodes are being prepared"


def permanent_problem(job: JobState) -> str:
    """Return why a pending job can never start, and what to request in its place; '' if it can start."""
    is_closed = CLOSED_PARTITION in job.reason
    reason = CLOSED_PARTITION_PROBLEM if is_closed else PERMANENT_REASONS.get(reason_code(job))
    if not job.pending or reason is None:
        return ""
    problem, alternative = reason
    return f"{problem}; use {alternative}"


def describe_end(job: JobState) -> str:
    """Return how a job ended whose run has left no outcome."""
    if job.state == FORGOTTEN:
        return f"Slurm does not know job {job.job} any more, and its run has left no outcome"
    ending = ENDINGS.get(job.state, f"the job ended as {job.state}")
    reason = f" ({job.reason})" if job.reason not in ("", "None") else ""
    return f"job {job.job}: {ending}{reason}"
