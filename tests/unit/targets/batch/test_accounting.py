"""Check what is read from the accounting of Slurm."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.report import training
from orchestrator.runs import outcome, store
from orchestrator.runs.accounting import Accounting
from orchestrator.targets.batch import accounting, states
from orchestrator.targets.batch.handle import SlurmHandle
from orchestrator.targets.batch.scheduler import Scheduler
from tests.support.slurm_jobs import FORGOTTEN, NO_ACCOUNTING, RecordedHost, make_result, make_watch, write_job_outcome

SACCT = """Welcome | to | the | site
12|CANCELLED by 1000|00:01:40||2026-01-02T03:00:00|2026-01-02T03:01:40
12.batch|CANCELLED|00:01:41|5120K|2026-01-02T03:00:00|2026-01-02T03:01:41
12.0|CANCELLED|00:01:40|1.5G|2026-01-02T03:00:01|2026-01-02T03:01:40
"""
# Two runs, one after the other, each with the step of its ranks.
SACCT_ALLOCATION = """12|RUNNING|00:05:00||2026-01-02T03:00:00|Unknown
12.0|COMPLETED|00:00:30|9000K|2026-01-02T03:00:00|2026-01-02T03:00:30
12.1|COMPLETED|00:00:20|3G|2026-01-02T03:00:05|2026-01-02T03:00:25
12.2|COMPLETED|00:01:00|9000K|2026-01-02T03:02:00|2026-01-02T03:03:00
12.3|COMPLETED|00:00:50|2G|2026-01-02T03:02:05|2026-01-02T03:02:55
"""
SHOWN = "JobId=12 JobName=orch-x JobState=COMPLETED Reason=None RunTime=00:01:05 TimeLimit=01:00:00"


def test_accounting_of_a_job_and_its_steps() -> None:
    record = accounting.parse("12", SACCT)
    assert record is not None
    assert record.describe() == "job 12: CANCELLED, 100 s, 1536 MiB in its largest task (sacct)"
    assert accounting.parse("1", SACCT) is None


def test_accounting_of_a_run_in_an_allocation_counts_no_other_run() -> None:
    record = accounting.parse("12.2", SACCT_ALLOCATION)
    assert record is not None
    assert (record.elapsed_seconds, record.max_rss_bytes) == (60, 2 << 30)


def test_controller_is_queried_if_there_is_no_accounting() -> None:
    results = {"sacct": NO_ACCOUNTING, "scontrol": make_result(SHOWN)}
    record = accounting.query(Scheduler(RecordedHost(**results)), "12")
    assert record == Accounting(source="scontrol", job="12", state="COMPLETED", elapsed_seconds=65, max_rss_bytes=None)


def test_controllers_state_counts_until_accounting_has_it() -> None:
    running = SACCT.replace("CANCELLED by 1000", "RUNNING")
    host = RecordedHost(sacct=make_result(running))
    record = accounting.query(Scheduler(host), "12", "TIMEOUT")
    assert record is not None
    assert record.state == "TIMEOUT"


def test_end_of_a_step_is_reported_when_accounting_has_it() -> None:
    """Check that accounting is asked again: the controller only reports that the step is gone."""
    running = SACCT_ALLOCATION.replace("12.2|COMPLETED", "12.2|RUNNING")
    host = RecordedHost(sacct=[make_result(running), make_result(SACCT_ALLOCATION)])
    record = accounting.query_end(Scheduler(host), "12.2", states.STEP_ENDED)
    assert record is not None
    assert record.state == "COMPLETED"


def test_result_has_what_slurm_recorded_of_the_job(folder: Path) -> None:
    write_job_outcome(folder, state="done")
    host = RecordedHost(squeue=FORGOTTEN, sacct=make_result(SACCT))
    handle = SlurmHandle(store.load(folder).record, folder)
    handle.__dict__["watch"] = make_watch(folder, host)
    result = json.loads(training.as_json(handle.finish()))["accounting"]
    assert result == {
        "source": "sacct",
        "job": "12",
        "state": "CANCELLED",
        "elapsed_seconds": 100,
        "max_rss_bytes": 3 << 29,
    }
    assert "1536 MiB" in training.full_report(outcome.outcome_of(store.load(folder)))
