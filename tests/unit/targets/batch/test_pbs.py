"""Check what orch asks PBS, and how it reads the answers that a real OpenPBS 23.06 gave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ExecuteError, PlanError
from orchestrator.model.printable import CommandResult
from orchestrator.runs import store
from orchestrator.targets.batch.inputs import batch_settings, plan_of_array
from orchestrator.targets.batch.pbs import PBS
from orchestrator.targets.batch.scheduler import Scheduler
from orchestrator.targets.batch.settings import location_of
from orchestrator.targets.batch.slurm import SLURM
from orchestrator.targets.batch.system import ControllerUnreachable, JobRequest, JobState, Phase
from tests.support.plans import read_golden
from tests.support.slurm_jobs import RecordedHost, make_handle
from tests.support.slurm_plans import make_request, plan_request, submit_step

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


def scheduler_with(*results: CommandResult) -> Scheduler:
    """Return the scheduler of a host whose programs of PBS return recorded results in order."""
    return Scheduler(PBS, RecordedHost(*results))


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
        (pbsnodes([0, 56, 56]), "ncpus=100", 1),  # parts
        (DOWN, "ncpus=112", 1),  # no response
    ):
        options = {"select": select} if select else {}
        assert PBS.default_ranks(scheduler_with(result), options, None)[0] == ranks


def state_of(*results: CommandResult, job: str = "7.pbs1") -> JobState:
    return PBS.state(scheduler_with(*results), job)


def ended(**fields: Any) -> JobState:
    """Return the state of a job that has ended, and that had started."""
    return state_of(job({"job_state": "F", "stime": "Tue Nov 24 10:16:24 2026", **fields}))


def test_the_job_id_is_found_in_the_output_of_qsub() -> None:
    for output, expected in (
        ("0.pbs1\n", "0.pbs1"),  # job
        ("5[].pbs1\n", "5[].pbs1"),  # array
        ("Welcome\n12.pbs-01.site.org\n", "12.pbs-01.site.org"),  # after-a-banner
        *((output, "") for output in ("", "qsub: Unknown queue\n", "1.pbs1\n2.pbs1\n")),
    ):
        assert PBS.parse_job_id(output) == (expected, "")


def test_the_reason_of_a_waiting_job_is_explained() -> None:
    for fields, explanation in (
        ({"job_state": "H", "Hold_Types": "u"}, "qrls"),  # held
        ({"job_state": "H", "Hold_Types": "s"}, "depends on"),  # held by PBS
        ({}, "has not been considered yet"),  # new
    ):
        result = state_of(job({**QUEUED, **fields}))
        assert explanation in result.describe()
        assert result.problem == ""
    comment = "Not Running: Not enough free nodes available"
    assert state_of(job({**QUEUED, "comment": comment})).describe().startswith(f"job 7.pbs1 waits: {comment}")
    never = "Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4 T: 4)"
    assert "--nodes" in state_of(job({**QUEUED, "comment": never})).problem


def test_the_end_of_a_job_is_explained() -> None:
    for fields, phase, explanation in (
        ({"Exit_status": 0, "substate": 92}, Phase.ENDED, "no outcome"),  # done
        ({"Exit_status": 3, "substate": 93}, Phase.FAILED, "no outcome"),
        ({"Exit_status": 271, "substate": 91}, Phase.CANCELLED, "qdel"),  # deleted
        ({"Exit_status": -29, "substate": 93}, Phase.KILLED, "walltime"),
        ({"Exit_status": -1, "substate": 93, "comment": "no home"}, Phase.ENDED, "could not start"),  # not-started
        ({"substate": 92, "stime": None}, Phase.ENDED, "never ran"),  # dependency
    ):
        result = ended(**fields)
        assert (result.phase, explanation in result.explanation) == (phase, True)
    assert ended(Exit_status=266, substate=93).reason == "SIGUSR1"


def test_a_server_without_a_valid_response_is_unreachable() -> None:
    damaged = CommandResult(code=0, out='{\n\t"Jobs": {"7.pbs1": \n}\n', err="")
    for result, message in ((DOWN, "cannot connect to server"), (damaged, "qstat")):
        with pytest.raises(ControllerUnreachable, match=message):
            state_of(result)
        with pytest.raises(ControllerUnreachable, match=message):
            PBS.jobs(scheduler_with(result), "")


def test_rejection_is_the_message_of_qsub_without_its_usage() -> None:
    usage = "usage: qsub [-a date_time] [-A account_string]\n\t[-c interval]\n       qsub --version\n"
    rejected = CommandResult(code=2, out="", err=f"qsub: illegal -p value\n{usage}")
    plan = plan_request(replace(make_request(), on="pbs"), batch_settings(PBS, None, ("priority=x",), {}))
    with pytest.raises(ExecuteError, match=r"^PBS rejects the job: illegal -p value\nhint"):
        scheduler_with(rejected, qstat(), qstat()).submit(submit_step(plan))


def test_a_site_without_history_is_asked_for_active_jobs_only() -> None:
    no_history = CommandResult(code=1, out="", err="qstat: PBS is not configured to maintain job history\n")
    # qstat prints names without quotes if they look like numbers.
    running = job({**RUNNING, "project": 0}).out.replace('"project": 0', '\n"a":inf,\n"b":+1,\n"c":\t00\n')
    listed = CommandResult(code=0, out=f"RULES | {{be kind}}\n{running}bye\n", err="")
    scheduler = scheduler_with(no_history, listed)
    state = PBS.state(scheduler, "7.pbs1")
    assert (state.phase, state.nodes, state.start) == (Phase.RUNNING, "pbs1,pbs2", "Tue Nov 24 10:16:05 2026")
    assert "-x" not in scheduler.host.commands[1]


def test_tasks_of_an_array_are_listed_with_the_id_of_the_array() -> None:
    array = {"Job_Name": "orch-a", "job_state": "B"}
    member = {"Job_Name": "orch-a", "job_state": "X", "substate": 93, "Exit_status": 3, "stime": "x"}
    listed = PBS.jobs(scheduler_with(qstat(**{"15[].pbs1": array, "15[3].pbs1": member})), "")
    assert [(entry.job, entry.task) for entry in listed] == [("15[].pbs1", ""), ("15[].pbs1", "3")]
    assert {entry.name for entry in listed} == {"orch-a"}
    assert listed[1].state.phase == Phase.FAILED


def test_accounting_has_the_time_and_the_memory() -> None:
    used = {"walltime": "00:01:26", "mem": "5912kb"}
    fields = {"job_state": "F", "Exit_status": -29, "substate": 93, "stime": "x", "resources_used": used}
    record = PBS.accounting(scheduler_with(job(fields)), state_of(job(fields)))
    assert (record.state, record.elapsed_seconds, record.max_rss_bytes) == ("WALLTIME", 86, 5912 * 1024)
    assert "MiB in all" in record.describe()
    assert PBS.accounting(scheduler_with(UNKNOWN_JOB), PBS.forgotten("7.pbs1")) is None


def options(request: JobRequest, **values: str) -> list[str]:
    return list(PBS.job_options(request, {**values, **{k: v for k, (v, _) in PBS.default_options(values).items()}}))


TWO_NODES = JobRequest(name="orch-x", nodes=2, ppn=4)


def test_options_are_written_as_qsub_takes_them() -> None:
    """Request whole nodes by default."""
    assert options(TWO_NODES) == ["-N orch-x", "-l select=2:ncpus=4:mpiprocs=4", "-l place=scatter:excl", "-r y"]
    values = {"queue": "long", "walltime": "2:00:00", "account": "a b", "site_res": "1", "hold": "u"}
    result = options(TWO_NODES, select="ncpus=8:mem=32gb", **values)
    assert result[:4] == ["-N orch-x", "-l select=2:ncpus=8:mem=32gb:mpiprocs=4", "-l place=scatter", "-r y"]
    assert sorted(result[4:]) == ["-A 'a b'", "-h", "-l site_res=1", "-l walltime=2:00:00", "-q long"]
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
    for system, option in ((PBS, "-J"), (SLURM, "--array")):
        request = replace(make_request({"array": ("learning_rate=1e-5",)}), on=system.name)
        plan = plan_request(request, batch_settings(system, None, ()), planner=plan_of_array)
        assert plan.steps[-1].name == location_of(plan.array[0].run).name, "else the job of the run is not found"
        assert option not in plan.steps[-1].script, "an array of one run is a single job"


def test_golden_script() -> None:
    settings = batch_settings(PBS, None, ("queue=long", "select=ncpus=8:mem=32gb", "walltime=00:04:00"), {})
    request = replace(make_request({"nodes": 2, "ppn": 2}), on="pbs")
    text = plan_request(request, settings).describe()
    assert text == read_golden("pbs.sh", text)


def test_mpi_that_cannot_start_processes_through_pbs_is_refused() -> None:
    request = replace(make_request({"mpi": "openmpi"}), on="pbs")
    with pytest.raises(PlanError) as exc_info:
        plan_request(request, batch_settings(PBS, None, ()))
    assert "--launcher torchrun" in exc_info.value.hint


def test_the_handle_follows_the_job_that_continues_the_run(folder: Path) -> None:
    (folder / "pbs-job.json").write_text('{"job": "8.pbs1", "restarts": 1, "notes": []}')
    handle = make_handle(folder, RecordedHost(UNKNOWN_JOB, qstat(**{"8.pbs1": RUNNING})), PBS)
    assert handle.state(now=True).phase == Phase.RUNNING
    assert location_of(store.load(folder).record).job == "8.pbs1"


def test_the_handle_does_not_follow_another_record(folder: Path) -> None:
    for record in ('{"job": "12", "restarts": 1, "notes": []}', '{"job": "$(x)", "restarts": 1, "notes": []}', "{"):
        (folder / "pbs-job.json").write_text(record)
        handle = make_handle(folder, RecordedHost(UNKNOWN_JOB), PBS)
        assert handle.state(now=True).phase == Phase.FORGOTTEN
        assert handle.job == "12"
