"""Check what orch asks PBS, and how it reads the answers that a real OpenPBS 23.06 gave."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import PlanError
from orchestrator.model.hosts import NodeCount
from orchestrator.model.printable import CommandResult
from orchestrator.planning.plan import SubmitScript
from orchestrator.runs import store
from orchestrator.targets.batch import pbs
from orchestrator.targets.batch.inputs import batch_settings
from orchestrator.targets.batch.location import location_of
from orchestrator.targets.batch.pbs import PBS
from orchestrator.targets.batch.run_folder import LocalFolder
from orchestrator.targets.batch.scheduler import Scheduler
from orchestrator.targets.batch.system import ControllerUnreachable, JobRequest, JobState, Phase
from orchestrator.targets.batch.watch import JobWatch
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interface import ignore
from tests.support.slurm_jobs import RecordedHost
from tests.support.slurm_plans import make_request, plan_request

GOLDEN = Path(__file__).parents[3] / "golden" / "pbs.sh"
RECORDED = Path(__file__).parents[5] / "shared" / "data" / "pbs"
HEAD = '{\n\t"timestamp":\t1795515377,\n\t"pbs_version":\t"23.06",\n\t"pbs_server":\t"pbs1"'
UNKNOWN_JOB = CommandResult(code=153, out=f"{HEAD}\n}}\n", err="qstat: Unknown Job Id 99999.pbs1\n")
DOWN = CommandResult(code=255, out="", err="Connection refused\nqstat: cannot connect to server pbs1 (errno=15010)\n")
QUEUED = {"job_state": "Q", "substate": 10, "Hold_Types": "n"}
RUNNING = {
    "job_state": "R",
    "exec_host": "pbs1/0*2+pbs2/0*2",
    "exec_vnode": "(pbs1:ncpus=2)+(pbs2:ncpus=2)",
    "stime": "Tue Nov 24 10:16:05 2026",
    "substate": 42,
    "comment": "Job run at Tue Nov 24 at 10:16 on (pbs1:ncpus=2)+(pbs2:ncpus=2)",
}


def qstat(**jobs: dict[str, Any]) -> CommandResult:
    """Return the result of `qstat -f -F json` for jobs named `pbs1_ID`."""
    listed = ",".join(f'\n\t\t"{job}":\t{json.dumps(fields)}' for job, fields in jobs.items())
    return CommandResult(code=0, out=f'{HEAD},\n\t"Jobs":\t{{{listed}\n\t}}\n}}\n', err="")


def job(fields: dict[str, Any]) -> CommandResult:
    """Return the result of qstat for job 7.pbs1."""
    return qstat(**{"7.pbs1": fields})


@dataclass
class RecordedPrograms:
    """PBS's programs, which return recorded results in order; the last one is repeated."""

    results: list[CommandResult]
    cluster: str = ""
    commands: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, *command: str) -> CommandResult:
        self.commands.append(command)
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]


def pbsnodes(*hosts: list[int]) -> CommandResult:
    """Return the result of `pbsnodes -a -F json` for hosts with vnodes of these numbers of CPUs."""
    vnodes = {
        f"pbs{host}[{vnode}]": {"resources_available": {"arch": "linux", "host": f"pbs{host}", "ncpus": cpus}}
        for host, sizes in enumerate(hosts)
        for vnode, cpus in enumerate(sizes)
    }
    return CommandResult(code=0, out=f'{HEAD},\n\t"nodes":\t{json.dumps(vnodes)}\n}}\n', err="")


def test_nodes_get_a_rank_per_numa_node_that_pbs_knows() -> None:
    for result, select, ranks in (
        (pbsnodes([0, 56, 56], [0, 56, 56], [64]), "ncpus=112:mem=200gb", 2),  # whole nodes
        (pbsnodes([0, 56, 56]), "ncpus=56", 1),  # one NUMA node
        (pbsnodes([0, 56, 56]), "ncpus=100", 1),  # parts
        (pbsnodes([112]), "ncpus=112", 1),  # no vnodes
        (pbsnodes([0, 56, 56]), "", 1),  # no request
        (DOWN, "ncpus=112", 1),  # no response
    ):
        options = {"select": select} if select else {}
        assert PBS.default_ranks(RecordedPrograms([result]), options, None)[0] == ranks


def state_of(*results: CommandResult, job: str = "7.pbs1") -> JobState:
    return PBS.state(RecordedPrograms([*results]), job)


def ended(**fields: Any) -> JobState:
    """Return the state of a job that has ended, and that had started."""
    return state_of(job({"job_state": "F", "stime": "Tue Nov 24 10:16:24 2026", **fields}))


def test_a_script_is_submitted_as_a_program_that_signals_reach() -> None:
    step = SubmitScript(
        run_dir="/shared/runs/x",
        script="",
        name="orch-x",
        program="qsub",
        options=("-N orch-x", "-l select='2:ncpus=4'"),
    )
    command = PBS.submit_command(step)
    assert command[:6] == ("qsub", "-f", "-N", "orch-x", "-l", "select=2:ncpus=4")
    path = "/shared/runs/x/job.sh"
    assert command[command.index("--") :] == ("--", "/bin/bash", "-l", path, path)


def test_the_job_id_is_found_in_the_output_of_qsub() -> None:
    for output, expected in (
        ("0.pbs1\n", "0.pbs1"),  # job
        ("5[].pbs1\n", "5[].pbs1"),  # array
        ("Welcome\n12.pbs-01.site.org\n", "12.pbs-01.site.org"),  # after-a-banner
        *((output, "") for output in ("", "qsub: Unknown queue\n", "1.pbs1\n2.pbs1\n")),
    ):
        assert PBS.parse_job_id(output) == (expected, "")


def test_a_rejected_job_comes_with_a_hint() -> None:
    for code, message, hint in (
        (170, "qsub: Unknown queue", "qstat -Q"),
        (187, "qsub: Unknown resource: ncpuz", "select="),
        (166, "qsub: Illegal attribute or resource value Resource_List.walltime", "walltime=HH:MM:SS"),
        (188, "qsub: Job violates queue and/or server resource limits", "qstat -Qf"),
        (188, "", "qstat -Qf"),  # limit-without-message
        (173, "qsub: Queue is not enabled", "queue=ANOTHER"),  # disabled
        (162, "Connection refused\nqsub: cannot connect to server pbs1 (errno=15010)", "qstat -B"),
        (1, "qsub: script file:: No such file or directory", "login node"),
    ):
        assert hint in PBS.hint_about(PBS.message_of(CommandResult(code=code, out="", err=message)))


def test_a_running_job_has_its_nodes_and_start() -> None:
    result = state_of(job(RUNNING))
    assert (result.phase, result.nodes, result.start) == (Phase.RUNNING, "pbs1,pbs2", "Tue Nov 24 10:16:05 2026")


def test_each_state_has_a_phase() -> None:
    for letter, phase in (
        ("Q", Phase.PENDING),
        ("H", Phase.PENDING),
        ("S", Phase.SUSPENDED),
        ("E", Phase.COMPLETING),
        ("B", Phase.RUNNING),
    ):
        assert state_of(job({"job_state": letter})).phase == phase


def test_the_reason_of_a_waiting_job_is_explained() -> None:
    for fields, explanation in (
        ({"comment": "Not Running: Not enough free nodes available"}, "not enough nodes are free"),
        ({"comment": "Not Running: User has reached queue workq running job limit."}, "as many jobs are running"),
        ({"comment": "Not Running: Queue not started."}, "does not start jobs now"),
        ({"comment": "Not Running: No available resources on nodes"}, "no node has enough resources free"),
        ({"comment": "Not Running: Server per-user limit reached on resource ncpus"}, "as much of a resource"),
        ({"comment": "Not Running: Job will run in primetime only"}, "at other times"),
        ({"comment": "Not Running: Insufficient amount of resource: ncpus (R: 4 A: 2 T: 4)"}, "not enough of a res"),
        ({"job_state": "H", "Hold_Types": "u"}, "qrls"),  # held
        ({}, "has not considered it"),  # new
    ):
        result = state_of(job({**QUEUED, **fields}))
        assert explanation in result.explanation
        assert result.problem == ""


def test_a_job_that_can_never_run_says_what_to_change() -> None:
    for comment in (
        "Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4 T: 4)",  # cores
        "Can Never Run: Not enough total nodes available",
    ):
        assert "--nodes" in state_of(job({**QUEUED, "comment": comment})).problem


def test_the_end_of_a_job_is_explained() -> None:
    for fields, phase, explanation in (
        ({"Exit_status": 0, "substate": 92}, Phase.ENDED, "no outcome"),  # done
        ({"Exit_status": 3, "substate": 93}, Phase.FAILED, "no outcome"),
        ({"Exit_status": 271, "substate": 91}, Phase.CANCELLED, "qdel"),  # deleted
        ({"Exit_status": -29, "substate": 93}, Phase.KILLED, "walltime"),
        ({"Exit_status": -27, "substate": 93}, Phase.KILLED, "memory"),
        ({"Exit_status": -20, "substate": 93}, Phase.KILLED, "node"),
        ({"Exit_status": -1, "substate": 93, "comment": "no home"}, Phase.ENDED, "could not start"),  # not-started
        ({"substate": 92, "stime": None}, Phase.ENDED, "never ran"),  # dependency
    ):
        result = ended(**fields)
        assert (result.phase, explanation in result.explanation) == (phase, True)
        assert PBS.named_state("7.pbs1", result.state).phase == phase
    assert ended(Exit_status=266, substate=93).reason == "SIGUSR1"


def test_a_job_that_pbs_does_not_know_is_forgotten() -> None:
    assert state_of(UNKNOWN_JOB, job="99999.pbs1").phase == Phase.FORGOTTEN


def test_a_server_without_a_valid_response_is_unreachable() -> None:
    damaged = CommandResult(code=0, out='{\n\t"Jobs": {"7.pbs1": \n}\n', err="")
    for result, message in ((DOWN, "cannot connect to server"), (damaged, "qstat")):
        with pytest.raises(ControllerUnreachable, match=message):
            state_of(result)
        with pytest.raises(ControllerUnreachable, match=message):
            PBS.jobs(RecordedPrograms([result]), "")


def test_a_site_without_history_is_asked_for_active_jobs_only() -> None:
    no_history = CommandResult(code=1, out="", err="qstat: PBS is not configured to maintain job history\n")
    programs = RecordedPrograms([no_history, job(RUNNING)])
    assert PBS.state(programs, "7.pbs1").phase == Phase.RUNNING
    assert "-x" not in programs.commands[1]


def test_lines_around_the_output_are_ignored() -> None:
    listed = job(RUNNING)
    assert state_of(CommandResult(code=0, out=f"RULES | {{be kind}}\n{listed.out}bye\n", err="")).phase == Phase.RUNNING


def test_tasks_of_an_array_are_listed_with_the_id_of_the_array() -> None:
    array = {"Job_Name": "orch-a", "job_state": "B"}
    member = {"Job_Name": "orch-a", "job_state": "X", "substate": 93, "Exit_status": 3, "stime": "x"}
    listed = PBS.jobs(RecordedPrograms([qstat(**{"15[].pbs1": array, "15[3].pbs1": member})]), "")
    assert [(entry.job, entry.task, entry.name) for entry in listed] == [
        ("15[].pbs1", "", "orch-a"),
        ("15[].pbs1", "3", "orch-a"),
    ]
    assert listed[1].state.phase == Phase.FAILED


def test_each_active_job_is_queried_because_qstat_prints_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "#!/bin/sh\nfor job; do :; done\ncat $0.$job; [ $job != 8.pbs1 ] || exit 35\n"  # 8.pbs1 has just ended
    for name, text in (("qselect", "#!/bin/sh\necho 7.pbs1 8.pbs1 9.pbs1\n"), ("qstat", script)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for number in (7, 8, 9):
        listed = qstat(**({f"{number}.pbs1": {**RUNNING, "Job_Name": "orch-a"}} if number != 8 else {}))
        (tmp_path / f"qstat.{number}.pbs1").write_text(listed.out)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [entry.job for entry in PBS.jobs(Scheduler(PBS, Local()), "")] == ["7.pbs1", "9.pbs1"]


def test_accounting_has_the_time_and_the_memory() -> None:
    used = {"walltime": "00:01:26", "mem": "5912kb"}
    fields = {"job_state": "F", "Exit_status": -29, "substate": 93, "stime": "x", "resources_used": used}
    record = PBS.accounting(RecordedPrograms([job(fields)]), "7.pbs1")
    assert (record.state, record.elapsed_seconds, record.max_rss_bytes) == ("WALLTIME", 86, 5912 * 1024)
    assert "MiB in all" in record.describe()
    assert PBS.accounting(RecordedPrograms([UNKNOWN_JOB]), "7.pbs1") is None


def options(request: JobRequest, **values: str) -> list[str]:
    return list(PBS.job_options(request, {**values, **{k: v for k, (v, _) in PBS.default_options(values).items()}}))


TWO_NODES = JobRequest(name="orch-x", nodes=2, ppn=4)


def test_a_job_gets_whole_nodes_by_default() -> None:
    assert options(TWO_NODES) == ["-N orch-x", "-l select=2:ncpus=4:mpiprocs=4", "-l place=scatter:excl", "-r y"]


def test_options_are_written_as_qsub_takes_them() -> None:
    result = options(
        TWO_NODES, queue="long", walltime="2:00:00", select="ncpus=8:mem=32gb", account="a b", site_res="1", hold=""
    )
    assert result == [
        "-N orch-x",
        "-l select=2:ncpus=8:mem=32gb:mpiprocs=4",
        "-l place=scatter",
        "-r y",
        "-q long",
        "-l walltime=2:00:00",
        "-A 'a b'",
        "-l site_res=1",
        "-h",
    ]
    assert "-l select=2:ncpus=8:mpiprocs=4" in options(TWO_NODES, select="2:ncpus=8"), "the number may be repeated"


def test_nodes_that_differ_from_the_request_are_refused() -> None:
    for values in (
        {"select": "3:ncpus=8"},  # other-number
        {"select": "1:ncpus=8+1:ncpus=4"},  # two-chunks
        {"select": "2"},  # no-resources
        {"select": "mem=4gb:ncpus=3"},  # fewer-cores-than-ranks
        {"place": "pack"},
    ):
        with pytest.raises(PlanError):
            options(TWO_NODES, **values)


def test_an_array_has_a_task_for_each_run() -> None:
    assert options(JobRequest(name="a", nodes=1, ppn=1, tasks=4, max_active=2))[-1] == "-J 0-3%2"
    assert PBS.array_job("5[].pbs1", 3) == "5[3].pbs1"
    # An array of one run is a single job.
    assert not any(line.startswith("-J") for line in options(JobRequest(name="a", nodes=1, ppn=1, tasks=1)))
    assert PBS.array_job("5.pbs1", 0) == "5.pbs1"


def test_ranks_share_the_cores_of_select() -> None:
    assert PBS.threads_per_rank({"select": "ncpus=8:mem=2gb"}, 4) == 2
    assert PBS.threads_per_rank({}, 4) == 0


def test_a_short_walltime_is_explained() -> None:
    assert "checkpoint" in PBS.explain_option("walltime", {"walltime": "00:02:00"})
    assert PBS.explain_option("walltime", {"walltime": "01:00:00"}) == ""


def recorded_answers() -> list[tuple[str, str]]:
    """Return the recorded output of each `qstat -f -F json`, by the name of its file."""
    texts = {path.name: path.read_text() for path in sorted(RECORDED.glob("*.txt"))}
    return [
        (name, text.partition("--- stdout\n")[2].partition("--- stderr")[0])
        for name, text in texts.items()
        if re.match(r"\$ .*qstat .*-F json", text) and "-Q" not in text.splitlines()[0]
    ]


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded answers in {RECORDED}")
def test_recorded_answers_have_states_that_orch_knows() -> None:
    states = [
        (name, pbs.job_state(job, fields))
        for name, output in recorded_answers()
        for job, fields in pbs.parse_jobs(output).items()
    ]
    assert len(states) > 20
    unexplained = [
        (name, state.reason) for name, state in states if (state.pending or state.ended) and not state.explanation
    ]
    assert unexplained == []


def test_golden_script() -> None:
    settings = batch_settings(PBS, None, ("queue=long", "select=ncpus=8:mem=32gb", "walltime=00:04:00"), {})
    request = replace(make_request({"nodes": NodeCount(2), "ppn": 2}), on="pbs")
    plan = plan_request(request, settings)
    text = plan.describe()
    if "ORCH_WRITE_GOLDEN" in os.environ:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_mpi_that_cannot_start_processes_through_pbs_is_refused() -> None:
    request = replace(make_request({"mpi": "openmpi"}), on="pbs")
    with pytest.raises(PlanError) as exc_info:
        plan_request(request, batch_settings(PBS, None, ()))
    assert "--launcher torchrun" in exc_info.value.hint


def test_a_setting_of_held_allocations_is_refused() -> None:
    with pytest.raises(PlanError, match="allocation=new"):
        batch_settings(PBS, None, ("allocation=new",)).check()


def watch_of(folder: Path, *results: CommandResult) -> JobWatch:
    """Return the watch of a run's job, whose files are on this machine."""
    host = RecordedHost(*results)
    return JobWatch(store.load(folder).record, folder, Scheduler(PBS, host), LocalFolder(folder), ignore)


def test_the_watch_follows_the_job_that_continues_the_run(folder: Path) -> None:
    (folder / "pbs-job.json").write_text('{"job": "8.pbs1", "restarts": 1, "notes": []}')
    watch = watch_of(folder, UNKNOWN_JOB, qstat(**{"8.pbs1": RUNNING}))
    assert watch.state(now=True).phase == Phase.RUNNING
    assert location_of(store.load(folder).record).job == "8.pbs1"


def test_the_watch_does_not_follow_another_record(folder: Path) -> None:
    for record in ('{"job": "12", "restarts": 1, "notes": []}', '{"job": "$(x)", "restarts": 1, "notes": []}', "{"):
        (folder / "pbs-job.json").write_text(record)
        watch = watch_of(folder, UNKNOWN_JOB)
        assert watch.state(now=True).phase == Phase.FORGOTTEN
        assert watch.job == "12"
