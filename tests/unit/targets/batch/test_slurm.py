"""Check how the programs of Slurm are called, and how their output and the states of jobs are read and described."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model.printable import CommandResult
from orchestrator.targets.batch import slurm
from orchestrator.targets.batch.scheduler import Scheduler
from orchestrator.targets.batch.settings import location_of, with_job
from orchestrator.targets.batch.slurm import SLURM
from orchestrator.targets.batch.system import ONE_RANK, ControllerUnreachable
from orchestrator.targets.connections.local import Local
from tests.support.files import write_program
from tests.support.slurm_jobs import FORGOTTEN, RecordedHost, make_job, make_result, squeue
from tests.support.slurm_plans import SITE, make_plan, make_settings, slurm_settings, submit_step

# `cpu*` has two kinds of nodes; `virtual` has machines with 32 sockets.
SINFO = """cpu*|30|2|56|224|icelake,ib
cpu*|2|1|16|16|old
small|4|1|16|32|(null)
virtual|8|32|2|64|(null)
"""
NOT_IN_GROUP = "uid 1500 not in group permitted to use this partition (grace). groups allowed: root"
WHOLE_NODES = {"exclusive": "", "mem": "0"}
ON_MOST_NODES = (2, "one for each socket: sinfo reports 2 x 56 cores on most nodes")


def test_whole_nodes_get_a_rank_per_socket() -> None:
    for partition, options, ranks in (
        ("", WHOLE_NODES, ON_MOST_NODES),  # mixed
        ("", {**WHOLE_NODES, "constraint": "icelake&ib"}, (2, "one for each socket: sinfo reports 2 x 56 cores")),
        ("", {**WHOLE_NODES, "constraint": "old|ib"}, ON_MOST_NODES),
        ("small", WHOLE_NODES, (1, "one for each socket: sinfo reports 1 x 16 cores")),
        ("virtual", WHOLE_NODES, ONE_RANK),
        ("", {"cpus-per-task": "8"}, ONE_RANK),  # shared
        ("none", WHOLE_NODES, ONE_RANK),  # unknown
    ):
        lines = [line for line in SINFO.splitlines() if line.startswith(f"{partition}|") or not partition]
        host = RecordedHost(sinfo=make_result("\n".join(lines)))
        options = {**options, "partition": partition} if partition else options
        assert SLURM.default_ranks(Scheduler(SLURM, host), options, None) == ranks
        assert all(f"--partition={partition}" in command for command in host.commands) or not partition


def test_reason_of_a_waiting_job_is_explained() -> None:
    for code, problem in (
        ("AssocMaxWallDurationPerJobLimit", "use --slurm time=LESS"),
        ("PartitionNodeLimit", ""),  # an administrator can return its nodes while the job waits
        ("DependencyNeverSatisfied", "use no --slurm dependency"),
        ("MaxMemPerLimit", "use --slurm mem=LESS, with --slurm exclusive for whole nodes"),
        (NOT_IN_GROUP, "use another --slurm partition=, account= or qos="),
    ):
        assert make_job("PENDING", code).problem == problem
        assert make_job("PENDING", code).reason.endswith(f" ({code})") is bool(problem)
    assert not make_job("PENDING", "MaxMemPerLimit", "small,large").problem, "it may start in the other partition"
    assert make_job("CANCELLED", "Resources").describe() == "job 12: the job was cancelled (scancel)"


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


def test_accounting_of_a_job_and_of_the_steps_of_one_run() -> None:
    record = slurm.parse_sacct("12", SACCT)
    assert record.describe() == "job 12: CANCELLED, 100 s, 1536 MiB in its largest task (sacct)"
    assert slurm.parse_sacct("1", SACCT) is None
    record = slurm.parse_sacct("12.2", SACCT_ALLOCATION)
    assert (record.elapsed_seconds, record.max_rss_bytes) == (60, 2 << 30)


def test_silent_sacct_delays_the_end_of_a_run_for_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "sacct", "#!/bin/sh\nexec sleep 60\n")
    write_program(tmp_path / "scontrol", "#!/bin/sh\necho JobId=12 JobState=COMPLETED Restarts=0 RunTime=00:00:13\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "ACCOUNTING_SECONDS", 0.5)
    began = time.monotonic()
    assert SLURM.accounting(Scheduler(SLURM, Local()), make_job("COMPLETED")).source == "scontrol"
    assert time.monotonic() - began < 30


def test_controllers_state_counts_until_accounting_has_it() -> None:
    """Check that accounting is asked again for a step: the controller only reports that the step is gone."""
    host = RecordedHost(sacct=make_result(SACCT.replace("CANCELLED by 1000", "RUNNING")))
    assert SLURM.accounting(Scheduler(SLURM, host), make_job("TIMEOUT")).state == "TIMEOUT"
    running = SACCT_ALLOCATION.replace("12.2|COMPLETED", "12.2|RUNNING")
    host = RecordedHost(sacct=[make_result(running), make_result(SACCT_ALLOCATION)])
    assert SLURM.accounting(Scheduler(SLURM, host), slurm.job_state("12.2", slurm.STEP_ENDED)).state == "COMPLETED"


def submit(*results: CommandResult) -> Scheduler:
    """Submit a job to a host that returns these results."""
    scheduler = Scheduler(SLURM, RecordedHost(*results))
    scheduler.submit(submit_step(make_plan()))
    return scheduler


def test_submit_finds_the_job_id_in_the_output_or_by_the_name_of_the_job() -> None:
    """Find it although a site prints a banner or wraps sbatch; a running task has another id than its array."""
    for output in ("Welcome\n\n12;cluster\n", "12\nYou have 340 hours left.\n", "Submitted batch job 12\nBye!\n"):
        assert submit(make_result(output)).submitted == "12"
    name = f"orch-{SITE.run_id}"
    old_and_new = f"Welcome | to | us\n11|{name}|CANCELLED|N/A||cpu|None\n12|{name}|PENDING|N/A||cpu|None\n"
    array = f"12_1|{name}|PENDING|N/A||cpu|Priority\n12_0|{name}|RUNNING|N/A|n1|cpu|None\n"
    for first, listed in (
        (CommandResult(code=3, out="12\nthe wrapper's mail was not sent\n", err=""), old_and_new),
        (make_result("12\n340\n"), old_and_new),
        (make_result("accepted\n"), array),
    ):
        scheduler = submit(first, make_result(listed))
        assert scheduler.submitted == "12"
        assert f"--name={name}" in scheduler.host.commands[-1]


CLUSTERS = f"CLUSTER: west\nCLUSTER: east\n12|orch-{SITE.run_id}|PENDING|N/A||cpu|None\n"


def test_job_of_another_cluster_is_queried_there() -> None:
    for results in (
        [make_result("Submitted batch job 12 on cluster east\n")],  # wrapper
        [CommandResult(code=1, out="?", err=""), make_result(CLUSTERS)],  # looked-up
    ):
        step = submit_step(make_plan({}, slurm_settings(None, ["clusters=west,east"], {})))
        assert "#SBATCH --clusters=west,east" in step.script
        host = RecordedHost(*results, squeue("RUNNING"))
        scheduler = Scheduler(SLURM, host)
        scheduler.submit(step)
        assert (scheduler.submitted, scheduler.cluster) == ("12", "east")
        assert location_of(with_job(make_plan().run, scheduler.submitted, scheduler.cluster)).cluster == "east"
        assert scheduler.state("12").state == "RUNNING"
        assert host.commands[-1][:2] == ("squeue", "--clusters=east")


def test_variables_of_sbatch_and_an_interactive_job_do_not_reach_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_MEM_PER_CPU", "SLURM_JOB_ID", "SLURM_CONF", "SBATCH_QOS"):
        monkeypatch.setenv(name, "1")
    host = RecordedHost(make_result("12;cluster\n"))
    step = submit_step(make_plan({}, make_settings(options={"time": "5", "account": "a"})))
    Scheduler(SLURM, host).submit(step)
    argv = host.commands[-1]
    unset = {name for flag, name in itertools.pairwise(argv) if flag == "-u"}
    assert {"SLURM_MEM_PER_CPU", "SLURM_JOB_ID", "SBATCH_TIMELIMIT", "SBATCH_ACCOUNT", "SBATCH_OUTPUT"} <= unset
    assert "SBATCH_QOS" in unset, "else --slurm qos= would not reset it"
    assert "SLURM_CONF" not in unset


BANNER = "RULES | be kind | clean up | pay\nMAINTENANCE|Friday|all nodes|sorry\n"


def test_banner_is_not_read_as_the_state_of_a_job() -> None:
    for state in ("RUNNING", "RESTING"):  # the second may be a state of a newer Slurm
        result = squeue(state)
        reported = Scheduler(SLURM, RecordedHost(replace(result, out=f"{BANNER}{result.out}"))).state("12")
        assert (reported.state, reported.ended) == (state, False)
    assert Scheduler(SLURM, RecordedHost(squeue=replace(FORGOTTEN, out=BANNER))).state("12").state == "GONE"


def test_listing_of_jobs_has_no_lines_of_a_banner_and_the_newest_job_of_a_run() -> None:
    rows = (
        "orch-x|orch-x|PENDING|b|c|cpu|d\n12|orch-x|RUNNING|N/A|n1|cpu|None\n"
        "9|orch-x|CANCELLED|N/A||cpu|None\n14_1|orch-y|PENDING|N/A||cpu|Priority\n"
    )
    host = RecordedHost(make_result(BANNER + rows))
    jobs = Scheduler(SLURM, host).query_jobs("orch-")
    states = {name: (job.job, job.state) for name, job in jobs.items()}
    assert states == {"orch-x": ("12", "RUNNING"), "orch-y-1": ("14_1", "PENDING")}
    assert "--all" in host.commands[0], "else jobs in closed partitions are hidden"
    assert "--array" in host.commands[0], "else squeue prints one line for all waiting tasks"


def test_only_a_job_that_slurm_has_forgotten_is_gone() -> None:
    away = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    for stderr in ("", away, "Invalid user id", "Protocol authentication error"):
        with pytest.raises(ControllerUnreachable):
            Scheduler(SLURM, RecordedHost(CommandResult(code=1, out="", err=stderr))).state("12")
    state = Scheduler(SLURM, RecordedHost(squeue=FORGOTTEN)).state("12")
    assert (state.state, state.ended) == ("GONE", True)
    assert "job 12: Slurm does not know it any more" in state.describe()
    # A site's squeue may list a new job with a delay.
    shown = make_result("JobId=12 JobName=x JobState=RUNNING Reason=None RunTime=00:00:05 TimeLimit=01:00:00")
    assert Scheduler(SLURM, RecordedHost(squeue=make_result(""), scontrol=shown)).state("12").state == "RUNNING"
