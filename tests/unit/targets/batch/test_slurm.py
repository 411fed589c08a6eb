"""Check how the states of jobs are described, and what is read from the accounting of Slurm."""

from __future__ import annotations

from orchestrator.targets.batch import slurm
from orchestrator.targets.batch.scheduler import Scheduler
from orchestrator.targets.batch.slurm import SLURM
from orchestrator.targets.batch.system import ONE_RANK
from tests.support.slurm_jobs import RecordedHost, make_job, make_result

# `cpu*` has two kinds of nodes; `virtual` has machines with 32 sockets.
SINFO = """cpu*|30|2|56|224|icelake,ib
cpu*|2|1|16|16|old
small|4|1|16|32|(null)
virtual|8|32|2|64|(null)
"""
WHOLE_NODES = {"exclusive": "", "mem": "0"}
NOT_IN_GROUP = "uid 1500 not in group permitted to use this partition (grace). groups allowed: root"
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
    for code, explanation in (
        ("QOSMaxNodePerUserLimit", "your jobs use all nodes that your QOS allows"),
        ("QOSMaxJobsPerUserLimit", "you have as many jobs running as your QOS allows"),
        ("AssocMaxWallDurationPerJobLimit", "its account does not allow jobs this long; use --slurm time=LESS"),
        # An administrator can start the partition, or return its nodes, while the job waits.
        (
            "PartitionNodeLimit",
            "nodes of its partition are down or drained, or it does not allow so many nodes per job",
        ),
        ("PartitionInactive", "its partition starts no jobs now"),
        ("DependencyNeverSatisfied", "the job that it waits for has failed; use no --slurm dependency"),
        (NOT_IN_GROUP, "its partition is not open to you; use another --slurm partition=, account= or qos="),
        ("QOSMaxCpuMinutesPerJobLimit", ""),
    ):
        result = make_job("PENDING", code)
        assert result.explanation == explanation
        assert bool(result.problem) is ("; use " in explanation)


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


def test_controllers_state_counts_until_accounting_has_it() -> None:
    """Check that accounting is asked again for a step: the controller only reports that the step is gone."""
    host = RecordedHost(sacct=make_result(SACCT.replace("CANCELLED by 1000", "RUNNING")))
    assert Scheduler(SLURM, host).accounting("12", make_job("TIMEOUT")).state == "TIMEOUT"
    running = SACCT_ALLOCATION.replace("12.2|COMPLETED", "12.2|RUNNING")
    host = RecordedHost(sacct=[make_result(running), make_result(SACCT_ALLOCATION)])
    record = Scheduler(SLURM, host).accounting("12.2", make_job(slurm.STEP_ENDED))
    assert record.state == "COMPLETED"
