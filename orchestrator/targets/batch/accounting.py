"""Query Slurm's accounting of a job with sacct, or with scontrol if the site has no accounting."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from orchestrator.errors import ExecuteError
from orchestrator.runs.accounting import Accounting
from orchestrator.targets.batch import states
from orchestrator.targets.batch.scheduler import Scheduler
from orchestrator.targets.batch.script import time_seconds

END_SECONDS = 10.0  # Accounting learns of the end of a step within this time.
POLL_SECONDS = 0.5
FIELDS = ("JobID", "State", "Elapsed", "MaxRSS", "Start", "End")
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)", re.ASCII)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SCONTROL_STATE = re.compile(r"\bJobState=(\S+)")
SCONTROL_TIME = re.compile(r"\bRunTime=(\S+)")


def query(scheduler: Scheduler, job: str, known_state: str = "") -> Accounting | None:
    """Return the record of a job, or None if Slurm has none or cannot be reached.

    Args:
        scheduler: Slurm's programs.
        job: the id of a job, of an array's task, or of a step (`12.3`).
        known_state: the final state that the controller reported; accounting may learn of it later.
    """
    options = ("--noheader", "--parsable2", f"--jobs={job.partition('.')[0]}", f"--format={','.join(FIELDS)}")
    record = parse(job, output(scheduler, "sacct", *options))
    if record is None and "." not in job:  # Only sacct shows a step that has ended.
        record = parse_scontrol(job, output(scheduler, "scontrol", "show", "job", "--oneliner", job))
    is_final = known_state in states.ENDINGS and known_state != states.STEP_ENDED
    if record is not None and record.state in states.ACTIVE and is_final:
        record = replace(record, state=known_state)
    return record


def query_end(scheduler: Scheduler, job: str, known_state: str) -> Accounting | None:
    """Return the record of a job that has ended, or None if Slurm has none or cannot be reached.

    Only accounting knows how a step ended, and learns of it later than the controller, so wait for that.
    """
    deadline = time.monotonic() + END_SECONDS
    while (record := query(scheduler, job, known_state)) is not None and record.state in states.ACTIVE:
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)
    return record


def output(scheduler: Scheduler, *command: str) -> str:
    """Return the output of one of Slurm's programs, or '' if it fails."""
    try:
        result = scheduler.run(*command)
    except ExecuteError:
        return ""
    return result.out if result.code == 0 else ""


def parse(job: str, text: str) -> Accounting | None:
    """Return the record in sacct's output, which has a row for the job and one for each of its steps."""
    rows = [line.split("|") for line in text.splitlines()]
    rows = [row for row in rows if len(row) == len(FIELDS)]
    job_row = next((row for row in reversed(rows) if row[0] == job), None)
    if job_row is None:
        return None
    _, state, elapsed, _, start, end = job_row
    # A run in an allocation starts its ranks as other steps, during its own step.
    steps = [
        row
        for row in rows
        if row[0].split(".")[0] == job.split(".")[0]
        and start <= row[4]
        and (row[5] <= end or "Unknown" in (row[5], end))
    ]
    sizes = [size for row in steps if (size := size_of(row[3])) is not None]
    # sacct writes `CANCELLED by 1000`, or `CANCELLED+` if the column is narrow.
    state_code, seconds = state.split(" ")[0].rstrip("+"), time_seconds(elapsed)
    if state_code not in states.ALL_STATES or seconds is None:
        return None
    return Accounting(
        source="sacct", job=job, state=state_code, elapsed_seconds=seconds, max_rss_bytes=max(sizes, default=None)
    )


def parse_scontrol(job: str, text: str) -> Accounting | None:
    """Return the record in the output of `scontrol show job`, which does not report memory."""
    state, time = SCONTROL_STATE.search(text), SCONTROL_TIME.search(text)
    seconds = time_seconds(time[1]) if time else None
    if state is None or state[1] not in states.ALL_STATES or seconds is None:
        return None
    return Accounting(source="scontrol", job=job, state=state[1], elapsed_seconds=seconds)


def size_of(text: str) -> int | None:
    """Return the bytes of a size such as `1.5M`, or None if it is malformed."""
    match = SIZE.fullmatch(text)
    return int(float(match[1]) * UNITS[match[2]]) if match else None
