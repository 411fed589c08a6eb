"""Check the scripts for sbatch, and how messages and states of Slurm are interpreted.

The scripts match the golden files, pass shellcheck, and are safe for hostile values.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.agent import containers
from orch_node.agent.engines import ContainerError, explain_apptainer_error
from orch_node.protocol import container
from orch_node.protocol import layout as layouts
from orch_node.protocol import outcome as outcomes
from orch_node.protocol import slurm as protocol
from orch_node.protocol.cores import Core
from orch_node.protocol.events import Waiting
from orch_node.protocol.outcome import Outcome
from orch_node.protocol.slurm import CONFIG, NODE0, Hello
from orch_node.slurm import layout as job_layout
from orch_node.slurm.agent import granted_cpus

from orchestrator import load
from orchestrator.errors import OrchError, PlanError, RequestError
from orchestrator.files import pack_folder
from orchestrator.model.command import CommandResult
from orchestrator.paths import TRAIN
from orchestrator.planning.plan import Plan, SendFolder, SubmitScript
from orchestrator.planning.refusal import check_refused
from orchestrator.planning.request import TrainRequest
from orchestrator.report import plans
from orchestrator.runs import store
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interface import ignore
from orchestrator.targets.slurm import array, find, states
from orchestrator.targets.slurm.decisions import Inputs, with_size
from orchestrator.targets.slurm.image import Image
from orchestrator.targets.slurm.inputs import check_image_exists
from orchestrator.targets.slurm.load import slurm_settings
from orchestrator.targets.slurm.location import location_of, with_job
from orchestrator.targets.slurm.login import SHELL, local_stack
from orchestrator.targets.slurm.options import REFUSES
from orchestrator.targets.slurm.plan import LOGIN, SlurmSite, plan_run, plan_slurm
from orchestrator.targets.slurm.run_folder import JobMirror, LocalFolder
from orchestrator.targets.slurm.scheduler import ControllerUnreachable, Scheduler
from orchestrator.targets.slurm.script import time_seconds
from orchestrator.targets.slurm.settings import RESERVED_OPTIONS, SlurmSettings
from orchestrator.targets.slurm.states import JobState
from orchestrator.targets.slurm.watch import JobWatch
from tests.conftest import make_facts
from tests.support.recorded import make_outcome, make_run

GOLDEN = Path(__file__).parents[3] / "golden" / "slurm"
SITE = SlurmSite(
    run_id="20260102-030405-bert-qa-abcd",
    run_dir="/shared/alice/runs/20260102-030405-bert-qa-abcd",
    train="/shared/orch/train",
    train_here=str(load.recipe("bert-qa").script).partition("/recipes/")[0],
    started_by="alice@login1",
    created=1_767_323_045.0,
)
IMAGES = {"container": "/shared/torch.sif", "pyxis": "/shared/torch.sqsh"}
CASES = {
    "srun": ({"nodes": "4", "ppn": 4}, ("partition=cpu", "account=physics", "time=2:00:00")),
    "mpirun": ({"nodes": "2", "ppn": 2, "launcher": "mpirun"}, ("cpus-per-task=8", "mem=32G")),
    "torchrun": (
        {"nodes": "2", "launcher": "torchrun", "max_restarts": 1, "spare_nodes": 1},
        ("constraint=avx512&ib", "comment=two words; it's $(touch PWNED)"),
    ),
    "accelerate": ({"nodes": "2", "launcher": "accelerate"}, ("exclusive", "requeue")),
    "array": ({}, ("learning_rate=1e-5,3e-5",)),
    "login": ({"nodes": "2"}, ("login=alice@login1.site", "time=30")),
    "container": (
        {"nodes": "2", "launcher": "mpirun"},
        ("login=login1", "container-mounts=/data:/data:ro", "container-arguments=--nv"),
    ),
    "pyxis": ({"nodes": "2"}, ("login=login1", "container-python=/opt/bin/python")),
}


def inputs_of(settings: SlurmSettings | None = None) -> Inputs:
    recipe, stack = load.recipe("bert-qa"), load.stack("current")
    facts = replace(make_facts(), packages={**stack.requirements, "torch": "2.13.0+cpu"})
    return Inputs(
        recipe=recipe,
        stack=stack,
        slurm=settings or SlurmSettings(),
        facts=facts,
        python="/shared/orch/stacks/current/bin/python",
    )


def request_of(asked: dict[str, object] | None = None) -> TrainRequest:
    return TrainRequest(recipe="bert-qa", on="slurm", backend="gloo", **(asked or {}))  # type: ignore[arg-type]


def plan_of(asked: dict[str, object] | None = None, settings: SlurmSettings | None = None) -> Plan:
    return plan_slurm(request_of(asked), inputs_of(settings), SITE)


def array_of(*asked: str) -> Plan:
    request, inputs, runs = request_of({"nodes": "2"}), inputs_of(), []
    for number, combination in enumerate(array.combinations(asked)):
        settings = load.settings([f"{name}={value}" for name, value in combination], inputs.recipe)
        decided = plan_run(request, replace(inputs, settings=settings), array.site_of(SITE, number))
        runs.append((combination, decided))
    return array.plan_array(SITE, runs, array.max_active_runs(asked))


def script_of(case: str) -> str:
    fields, options = CASES[case]
    settings = slurm_settings(None, options, {}, image=IMAGES.get(case)) if case != "array" else None
    plan = plan_of(fields, settings) if settings else array_of(*options)
    return plan.describe().replace(SITE.train_here, "/here/train")


@pytest.mark.parametrize("case", CASES)
def test_golden_scripts(case: str) -> None:
    path = GOLDEN / f"{case}.sh"
    text = script_of(case)
    if "ORCH_WRITE_GOLDEN" in os.environ:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("case", CASES)
def test_scripts_pass_shellcheck(case: str, tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.fail("no shellcheck: pip install --editable '.[dev]'")
    path = tmp_path / "job.sh"
    path.write_text(script_of(case))
    done = subprocess.run(["shellcheck", "--shell=bash", str(path)], capture_output=True, text=True)
    assert done.stdout == ""


def test_the_script_writes_the_settings_of_the_job(tmp_path: Path) -> None:
    """Run the part of the script between its options and its last command."""
    site = str(tmp_path / "runs")
    text = script_of("torchrun").replace("/shared/alice/runs", site)
    head, _, command = text.rstrip().rpartition("\nexec ")
    subprocess.run(["bash", "-c", head], check=True, cwd=tmp_path)
    config = protocol.parse((tmp_path / "runs" / SITE.run_id / CONFIG).read_text())
    assert (config.nodes, config.spare_nodes, config.ppn, config.launch) == (2, 1, 1, "torchrun")
    assert any(word.startswith(f"--meet={NODE0}:") for word in config.launcher)
    assert command.endswith(f"/node.py slurm {site}/{SITE.run_id}")
    assert not (tmp_path / "PWNED").exists()


def test_options_are_lines_that_sbatch_reads() -> None:
    lines = [line for line in script_of("torchrun").splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=3" in lines  # This includes the spare node.
    assert "#SBATCH --no-kill" in lines
    assert "#SBATCH --constraint='avx512&ib'" in lines
    assert "#SBATCH --exclusive" in lines  # No setting limits the job to a part of a node.
    assert "#SBATCH --exclusive" not in script_of("mpirun")


@pytest.mark.parametrize("name", RESERVED_OPTIONS)
def test_options_that_orch_sets_are_refused(name: str) -> None:
    with pytest.raises(PlanError, match=f"--slurm {name}: orch sets this option itself"):
        plan_of({}, SlurmSettings(sbatch={name: "1"}))


@pytest.mark.parametrize(
    ("asked", "settings", "words"),
    [
        ({"nodes": "n[1-3]"}, {}, "needs the number of nodes"),
        ({"nodes": "0"}, {}, "needs the number of nodes"),
        ({"ppn": 0}, {}, "--ppn 0"),
        ({"launcher": "mpijob"}, {}, "--launcher mpijob does not run on Slurm"),
        ({"mpi": "intel"}, {}, "--launcher srun starts the ranks without mpirun"),
        ({"mpi": "openmpi", "launcher": "mpirun"}, {}, "mpirun must be that of intel"),
        ({"spare_nodes": 1}, {}, "--spare-nodes without --max-restarts"),
        ({"stall_timeout": -1.0}, {}, "are 0 or more"),
        ({}, {"pmi": "pmi9"}, "pmi=pmi9"),
        ({}, {"root": "relative"}, "root=relative: expected an absolute path"),
        ({}, {"sbatch": {"comment": "two\nlines"}}, "cannot be printed"),
        ({}, {"sbatch": {"x y": "1"}}, "not an option of sbatch"),
        ({}, {"sbatch": {"cpus-per-task": "many"}}, "cpus-per-task=many: expected a number"),
    ],
)
def test_impossible_requests_are_refused(asked: dict[str, object], settings: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(asked, SlurmSettings(**settings))  # type: ignore[arg-type]
    assert words in caught.value.message


def test_later_settings_win_and_each_source_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('pmi = "none"\n[sbatch]\naccount = "b"\ntime = 30\nexclusive = true\n')
    environ = {"SBATCH_PARTITION": "p", "SBATCH_ACCOUNT": "a", "SBATCH_TIMELIMIT": "5", "HOME": "/"}
    result = slurm_settings(path, ("account=c", "mem_per_cpu=1G"), environ)
    assert result.pmi == "none"
    assert result.sbatch == {"account": "c", "partition": "p", "time": "30", "exclusive": "", "mem-per-cpu": "1G"}
    assert result.sources["partition"] == "SBATCH_PARTITION"
    assert result.sources["time"] == str(path)
    text = plan_of({}, result).describe()
    assert "# slurm partition: p (SBATCH_PARTITION)" in text
    assert "# slurm account: c (requested)" in text


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(RequestError, match="--slurm partition: expected KEY=VALUE"):
        slurm_settings(None, ("partition",), {})


def test_a_thousand_nodes_are_one_script() -> None:
    plan = plan_of({"nodes": "1000", "ppn": 8})
    assert len(plan.layout.rank_places) == 8000
    assert len(plan.describe()) < 20_000
    assert json.loads(plans.as_json(plan))["script"] == plan.describe()


def test_each_task_of_an_array_is_a_run_with_its_own_settings(tmp_path: Path) -> None:
    text = script_of("array").replace("/shared/alice/runs", str(tmp_path))
    assert "#SBATCH --array=0-1" in text
    head, _, command = text.rstrip().rpartition("\nexec ")
    for number, rate in enumerate(("1e-5", "3e-5")):
        environ = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "12"}
        subprocess.run(["bash", "-c", head], check=True, env={**os.environ, **environ})
        folder = tmp_path / f"{SITE.run_id}-{number}"
        config = protocol.parse((folder / CONFIG).read_text())
        assert config.run_id == folder.name
        assert f"--learning_rate={rate}" in config.launcher
        assert f"--output_dir={folder}/output" in config.launcher
        assert (folder / f"slurm-12_{number}.out").exists()
    assert command.endswith(' slurm "$run_dir"')


def test_an_array_has_a_run_for_each_combination() -> None:
    runs = array_of("seed=1,2", "learning_rate=1e-5,3e-5").array
    combinations = [next(decision.value for decision in run.run.decisions if decision.topic == "array") for run in runs]
    assert combinations == [
        "seed=1 learning_rate=1e-5 (1 of 4)",
        "seed=1 learning_rate=3e-5 (2 of 4)",
        "seed=2 learning_rate=1e-5 (3 of 4)",
        "seed=2 learning_rate=3e-5 (4 of 4)",
    ]
    assert len({run.run.key for run in runs}) == 4  # Each run resumes on its own.
    assert len({run.run.run_dir for run in runs}) == 4


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("seed",), "expected KEY=VALUE"),
        (("seed=",), "expected KEY=VALUE"),
        (("seed=1,,2",), "expected KEY=VALUE"),
        (("=1,2",), "expected KEY=VALUE"),
        (("seed=1,2", "seed=3"), "names a setting twice"),
        ((f"seed={','.join(map(str, range(1001)))}",), "the limit is 1000"),
    ],
)
def test_impossible_arrays_are_refused(asked: tuple[str, ...], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        array.combinations(asked)


def test_tasks_of_an_array_are_listed_separately() -> None:
    listing = "12_0|orch-x|RUNNING|N/A|n1|None\n12_1|orch-x|PENDING|N/A||Priority\n"
    host = Host(CommandResult(code=0, out=f"{listing}13|orch-y|RUNNING|N/A|n1|None\n", err=""))
    states = Scheduler(host).query_jobs("orch-")
    assert {name: state.job for name, state in states.items()} == {
        "orch-x-0": "12_0",
        "orch-x-1": "12_1",
        "orch-y": "13",
    }
    assert "--array" in host.commands[0]  # Without it, squeue prints one line for all waiting tasks.


@pytest.mark.parametrize("login", ["-oProxyCommand=x", "a b", "host;id", "u@-x", "h/x", "a@b@c"])
def test_a_login_node_is_a_host_and_no_option_of_ssh(login: str) -> None:
    with pytest.raises(PlanError, match="not a host name"):
        plan_of({}, SlurmSettings(login=login))


def test_a_damaged_record_names_no_other_host(tmp_path: Path) -> None:
    location = {"name": "orch-x", "job": "12", "login": "-oProxyCommand=touch PWNED"}
    folder = make_run(tmp_path, target="slurm", location=location)
    with pytest.raises(OrchError, match="is not a valid host"):
        location_of(store.load(folder).record)


def test_a_sent_folder_is_complete_or_absent(tmp_path: Path) -> None:
    """Send the folder twice, the second time over the existing copy, and then a truncated one."""
    step = SendFolder(node=LOGIN, source=str(TRAIN), path=str(tmp_path / "a b" / "train"))
    for _ in range(2):
        subprocess.run(["bash", "-c", step.describe()], check=True)
    Local().feed(step.unpack(), pack_folder(TRAIN))
    assert (tmp_path / "a b" / "train" / "node.py").read_bytes() == (TRAIN / "node.py").read_bytes()
    assert sorted(os.listdir(tmp_path / "a b")) == [".train.lock", "train"]
    truncated_step = replace(step, path=str(tmp_path / "other"))
    with pytest.raises(OrchError, match="tar"):
        Local().feed(truncated_step.unpack(), pack_folder(TRAIN)[:5000])
    assert os.listdir(tmp_path) == ["a b"]


# Messages and states of Slurm.


def job(state: str, reason: str = "None", start: str = "N/A") -> JobState:
    return JobState(job="12", state=state, start=start, nodes="n[1-2]", reason=reason)


def test_a_waiting_job_is_reported_with_its_reason() -> None:
    message = states.describe_waiting(job("PENDING", "Priority", "2026-01-02T03:04:05"))
    assert message == (
        "job 12 waits: jobs with a higher priority come first (Priority); expected to start at 2026-01-02T03:04:05"
    )
    down = job("PENDING", "ReqNodeNotAvail, UnavailableNodes:n[1-3]")
    assert "down, drained or reserved (ReqNodeNotAvail, Una" in states.describe_waiting(down)
    held = job("PENDING", "launch failed requeued held")
    assert "scontrol release" in states.describe_waiting(held)
    assert states.describe_waiting(job("PENDING", "SomethingNew")) == "job 12 waits: SomethingNew"


def test_a_job_that_can_never_start_is_known() -> None:
    assert "fewer --nodes" in states.permanent_problem(job("PENDING", "PartitionNodeLimit"))
    assert "--slurm account" in states.permanent_problem(job("PENDING", "InvalidAccount"))
    assert not states.permanent_problem(job("PENDING", "Priority"))
    assert not states.permanent_problem(job("RUNNING", "PartitionNodeLimit"))


@pytest.mark.parametrize(
    "reason",
    [
        "uid 1500 not in group permitted to use this partition (grace). groups allowed: root",
        "Job's account not permitted to use this partition (grace allows physics not chemistry)",
    ],
    ids=["group", "account"],
)
def test_a_job_in_a_closed_partition_never_starts_in_the_words_of_a_newer_slurm(reason: str) -> None:
    assert "is not open to you; use another --slurm partition=" in states.permanent_problem(job("PENDING", reason))
    assert not states.permanent_problem(job("RUNNING", reason))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("CANCELLED", "the job was cancelled"),
        ("TIMEOUT", "reached its time limit"),
        ("OUT_OF_MEMORY", "ran out of memory"),
        ("NODE_FAIL", "a node of the job failed"),
        ("PREEMPTED", "was preempted"),
        ("ODD", "ended as ODD"),
    ],
)
def test_the_end_of_a_job_is_described(state: str, words: str) -> None:
    result = job(state)
    assert result.ended
    assert words in states.describe_end(result)


def test_a_job_that_slurm_has_forgotten() -> None:
    assert states.parse("12", "slurm_load_jobs error: Invalid job id specified\n") is None
    result = states.forgotten("12")
    assert result.ended
    assert "does not know job 12 any more" in states.describe_end(result)


class Files:
    """The run folder on a login node, as a mapping of file names to contents."""

    def __init__(self, found: dict[str, str]) -> None:
        self.found = found

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes | None:
        text = self.found.get(path.rpartition("/")[2])
        return None if text is None else text.encode()[offset:]

    def size(self, path: str) -> int:
        return len(self.read(path) or b"")


def test_the_copy_of_a_requeued_job_has_no_outcome(tmp_path: Path) -> None:
    run_folder = Files({"events.jsonl": "{}\n", "outcome.json": "{}", "supervisor.json": "{}"})
    for _ in range(2):
        mirror = JobMirror(run_folder, "/shared/runs/x", tmp_path, ranks=1)  # type: ignore[arg-type]
        mirror.refresh()
        assert {path.name for path in tmp_path.iterdir()} == set(run_folder.found)
        run_folder.found = {"events.jsonl": "{}\n{}\n"}
    assert (tmp_path / "events.jsonl").read_text() == run_folder.found["events.jsonl"]


class Host:
    """A host that returns the given results in order and records the commands."""

    def __init__(self, *answers: CommandResult) -> None:
        self.answers = list(answers)
        self.commands: list[tuple[str, ...]] = []

    def put(self, path: str, content: str) -> None:
        self.commands.append(("put", path))

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        self.commands.append(argv)
        return self.answers.pop(0)


NO_JOB = CommandResult(code=0, out="", err="")


def submit(*answers: CommandResult, before: tuple[str, ...] = ()) -> Scheduler:
    (step,) = plan_of().steps
    assert isinstance(step, SubmitScript)
    scheduler = Scheduler(Host(*answers), before)
    scheduler.submit(step)
    return scheduler


@pytest.mark.parametrize(
    "output",
    [
        "Welcome\n\n12;cluster\n",
        "12\nYour project has 340 hours left.\n",
        "Checking the quota\nSubmitted batch job 12\nGood luck!\n",
    ],
    ids=["banner-before", "wrapper-after", "wrapper-without-parsable"],
)
def test_submit_finds_the_job_id_between_other_lines(output: str) -> None:
    assert submit(CommandResult(code=0, out=output, err="")).submitted == "12"


@pytest.mark.parametrize(
    "first",
    [
        CommandResult(code=3, out="12\nthe wrapper's mail was not sent\n", err=""),
        CommandResult(code=0, out="accepted\n", err=""),
        CommandResult(code=0, out="12\n340\n", err=""),
    ],
    ids=["wrapper-fails", "no-job-id", "two-numbers"],
)
def test_submit_looks_the_job_up_by_its_name(first: CommandResult) -> None:
    listed = CommandResult(code=0, out="Welcome | to | us\n11|CANCELLED\n12|PENDING\n", err="")
    scheduler = submit(first, listed)
    assert scheduler.submitted == "12"
    assert isinstance(scheduler.host, Host)
    assert f"--name=orch-{SITE.run_id}" in scheduler.host.commands[-1]


@pytest.mark.parametrize("case", ["srun", "array"])
def test_a_job_on_a_node_that_does_not_see_its_script_ends_before_it_writes(case: str, tmp_path: Path) -> None:
    scheduler = submit(CommandResult(code=0, out="12\n", err=""))
    assert isinstance(scheduler.host, Host)
    script, argument = scheduler.host.commands[-1][-2:]
    assert script == argument, "the job learns where its script is"
    site = tmp_path / "runs"
    text = script_of(case).replace("/shared/alice/runs", str(site))
    command = ["bash", "-c", text, "job.sh", str(site / "job.sh")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SLURMD_NODENAME": "n1"})
    assert done.returncode == 1
    assert f"n1 does not see {site}/job.sh. Choose a folder that all nodes share: --runs-dir" in done.stderr
    assert not site.exists()


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([CommandResult(code=0, out="12;east\n", err="")], id="parsable"),
        pytest.param([CommandResult(code=0, out="Submitted batch job 12 on cluster east\n", err="")], id="wrapper"),
        pytest.param(
            [
                CommandResult(code=1, out="?", err=""),
                CommandResult(code=0, out="CLUSTER: west\nCLUSTER: east\n12|PENDING\n", err=""),
            ],
            id="looked-up",
        ),
    ],
)
def test_a_job_of_another_cluster_is_queried_there(answers: list[CommandResult]) -> None:
    (step,) = plan_of({}, slurm_settings(None, ["clusters=west,east"], {})).steps
    assert isinstance(step, SubmitScript)
    assert "#SBATCH --clusters=west,east" in step.script
    host = Host(*answers, CommandResult(code=0, out="RUNNING|N/A|n1|None\n", err=""))
    scheduler = Scheduler(host)
    scheduler.submit(step)
    assert (scheduler.submitted, scheduler.cluster) == ("12", "east")
    record = with_job(plan_of().run, scheduler.submitted, scheduler.cluster)
    assert location_of(record).cluster == "east"
    assert scheduler.state("12").state == "RUNNING"
    assert host.commands[-1][:2] == ("squeue", "--clusters=east")


def test_a_run_folder_stays_if_the_job_may_have_been_accepted() -> None:
    (step,) = plan_of().steps
    assert isinstance(step, SubmitScript)
    scheduler = Scheduler(Host(CommandResult(code=0, out="?", err=""), CommandResult(code=1, out="", err="busy")))
    with pytest.raises(OrchError):
        scheduler.submit(step)
    assert scheduler.uncertain


def test_variables_of_an_interactive_job_do_not_reach_the_new_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_MEM_PER_CPU", "SLURM_JOB_ID", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    scheduler = submit(CommandResult(code=0, out="12\n", err=""))
    assert isinstance(scheduler.host, Host)
    argv = scheduler.host.commands[-1]
    unset = {name for flag, name in itertools.pairwise(argv) if flag == "-u"}
    assert {"SLURM_MEM_PER_CPU", "SLURM_JOB_ID"} <= unset
    assert "SLURM_CONF" not in unset


BANNER = "RULES | be kind | clean up | pay\nMAINTENANCE|Friday|all nodes|sorry\n"


def test_a_banner_is_not_read_as_the_state_of_a_job() -> None:
    squeue_result = CommandResult(code=0, out=f"{BANNER}RUNNING|N/A|n1|None\n", err="")
    assert Scheduler(Host(squeue_result)).state("12").state == "RUNNING"
    forgotten = CommandResult(code=1, out=BANNER, err="slurm_load_jobs error: Invalid job id specified")
    assert Scheduler(Host(forgotten)).state("12").state == states.FORGOTTEN
    with pytest.raises(ControllerUnreachable, match="MAINTENANCE"):  # It may be a state of a newer Slurm.
        Scheduler(Host(replace(forgotten, code=0))).state("12")


def test_the_listing_of_jobs_has_no_lines_of_a_banner_and_the_newest_job_of_a_run() -> None:
    rows = (
        "orch-x|orch-x|PENDING|b|c|d\n12|orch-x|RUNNING|N/A|n1|None\n"
        "9|orch-x|CANCELLED|N/A||None\n14_1|orch-y|PENDING|N/A||Priority\n"
    )
    host = Host(CommandResult(code=0, out=BANNER + rows, err=""))
    jobs = Scheduler(host).query_jobs("orch-")
    assert {name: (job.job, job.state) for name, job in jobs.items()} == {
        "orch-x": ("12", "RUNNING"),
        "orch-y-1": ("14_1", "PENDING"),
    }
    assert "--all" in host.commands[0], "else jobs in closed partitions are hidden"


def test_a_rejected_job_is_reported_with_slurms_message() -> None:
    error_output = "sbatch: error: invalid partition specified: nosuch\nsbatch: error: Batch job submission \
failed: Invalid partition name specified\n"
    with pytest.raises(OrchError) as caught:
        submit(CommandResult(code=1, out="", err=error_output), NO_JOB)
    assert "invalid partition specified: nosuch" in caught.value.message
    assert "partition=NAME" in caught.value.hint


def test_variables_of_sbatch_do_not_win_over_the_script() -> None:
    host = Host(CommandResult(code=0, out="12;cluster\n", err=""))
    (step,) = plan_of({}, SlurmSettings(sbatch={"time": "5", "account": "a"})).steps
    assert isinstance(step, SubmitScript)
    scheduler = Scheduler(host)
    scheduler.submit(step)
    assert scheduler.submitted == "12"
    argv = host.commands[-1]
    assert {"SBATCH_TIMELIMIT", "SBATCH_ACCOUNT"} <= set(argv)
    assert argv[-1].endswith("/job.sh")


def test_slurm_is_queried_through_a_login_shell_over_ssh() -> None:
    noise = "Welcome to the cluster | maintenance on Friday\n"
    host = Host(
        CommandResult(code=0, out=f"{noise}12;cluster\n", err=""),
        CommandResult(code=0, out=f"{noise}RUNNING|N/A|n1|None\n", err=""),
    )
    (step,) = plan_of().steps
    assert isinstance(step, SubmitScript)
    scheduler = Scheduler(host, SHELL)
    scheduler.submit(step)
    assert scheduler.submitted == "12"
    assert scheduler.state("12").state == "RUNNING"
    assert all(argv[:4] == SHELL for argv in host.commands if argv[0] != "put")


def test_an_unreachable_controller_does_not_end_a_job() -> None:
    away = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    with pytest.raises(ControllerUnreachable):
        Scheduler(Host(CommandResult(code=1, out="", err=away))).state("12")


@pytest.mark.parametrize("stderr", ["", "Invalid user id", "Protocol authentication error"])
def test_only_a_job_that_slurm_has_forgotten_is_gone(stderr: str) -> None:
    with pytest.raises(ControllerUnreachable):
        Scheduler(Host(CommandResult(code=1, out="", err=stderr))).state("12")
    forgotten = "slurm_load_jobs error: Invalid job id specified"
    assert Scheduler(Host(CommandResult(code=1, out="", err=forgotten))).state("12").state == states.FORGOTTEN


def test_a_requeued_job_waits_although_it_has_had_a_supervisor(tmp_path: Path) -> None:
    folder = make_run(tmp_path, target="slurm", location={"name": "orch-x", "job": "12"})
    (folder / "outcome.json").unlink(missing_ok=True)
    (folder / "supervisor.json").write_text('{"pid": 7, "started": 1.0}')
    lines = ("PENDING|N/A||BeginTime", "PENDING|N/A||BeginTime", "RUNNING|N/A|n1|None")
    host = Host(*(CommandResult(code=0, out=f"{line}\n", err="") for line in lines))
    record = store.load(folder).record
    watch = JobWatch(record, folder, Scheduler(host), LocalFolder(folder), lambda line: None)
    assert [event.text for event in watch.queue_events() if isinstance(event, Waiting)] == [
        states.describe_waiting(job("PENDING", "BeginTime"))
    ]
    assert not host.answers


def test_an_expected_start_that_changes_at_each_query_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.targets.slurm.watch.FIRST_QUERY_SECONDS", 0.0)
    folder = make_run(tmp_path, target="slurm", location={"name": "orch-x", "job": "12"})
    (folder / "outcome.json").unlink(missing_ok=True)
    (folder / "supervisor.json").write_text('{"pid": 7, "started": 1.0}')
    starts = ("N/A", "2026-01-02T03:04:05", "2026-01-02T03:04:10", "2026-01-02T03:04:15")
    lines = (*(f"PENDING|{start}||Priority" for start in starts), "RUNNING|N/A|n1|None")
    host = Host(*(CommandResult(code=0, out=f"{line}\n", err="") for line in lines))
    record = store.load(folder).record
    watch = JobWatch(record, folder, Scheduler(host), LocalFolder(folder), lambda line: None)
    messages = [event.text for event in watch.queue_events() if isinstance(event, Waiting)]
    assert messages == [states.describe_waiting(job("PENDING", "Priority", start)) for start in starts[:2]]


class SlowFolder(LocalFolder):
    """The folder of a job whose supervisor appears at the second refresh."""

    looks = 0

    def refresh(self) -> None:
        self.looks += 1
        if self.looks == 2:
            (self.folder / "supervisor.json").write_text('{"pid": 7, "started": 1.0}')


def test_a_running_job_that_prepares_its_nodes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.targets.slurm.watch.READY_SECONDS", 0.0)
    folder = make_run(tmp_path, target="slurm", location={"name": "orch-x", "job": "12"})
    (folder / "outcome.json").unlink(missing_ok=True)
    (folder / "supervisor.json").unlink(missing_ok=True)
    host = Host(CommandResult(code=0, out="RUNNING|N/A|n[1-2]|None\n", err=""))
    record = store.load(folder).record
    watch = JobWatch(record, folder, Scheduler(host), SlowFolder(folder), lambda line: None)
    (message,) = [event.text for event in watch.queue_events() if isinstance(event, Waiting)]
    assert "job 12 runs on n[1-2]: its nodes are being prepared" in message


def test_a_job_that_slurm_did_not_requeue_keeps_its_checkpoint(tmp_path: Path) -> None:
    folder = make_run(tmp_path, target="slurm", location={"name": "orch-x", "job": "12"})
    (folder / "outcome.json").unlink(missing_ok=True)
    preempted = Outcome(state="preempted", started=1.0, ended=2.0, problem="checkpoint at step 3")
    (folder / "outcome-0.json").write_text(outcomes.render(preempted))
    host = Host(CommandResult(code=0, out="FAILED|N/A|n1|NonZeroExitCode\n", err=""))
    record = store.load(folder).record
    watch = JobWatch(record, folder, Scheduler(host), LocalFolder(folder), lambda line: None)
    watch.ensure_outcome()
    run = store.load(folder)
    assert run.state == "preempted"
    assert run.outcome is not None
    assert (run.outcome.problem or "").startswith("checkpoint at step 3, but Slurm did not")


# The layout that the job creates on its nodes.

CONFIG_OF = {"nodes": "2", "ppn": 2, "launcher": "mpirun", "max_restarts": 1, "spare_nodes": 1}


def config_of(tmp_path: Path, asked: dict[str, object]) -> protocol.JobConfig:
    text = plan_of(asked).describe().replace("/shared/alice/runs", str(tmp_path))
    subprocess.run(["bash", "-c", text.rpartition("\nexec ")[0]], check=True)
    return protocol.parse((tmp_path / SITE.run_id / CONFIG).read_text())


def hello(number: int, cores: int = 4) -> Hello:
    return Hello(
        node=f"n{number}",
        host=f"n{number}.site",
        confined=True,
        flags=("avx512f", "avx512_bf16"),
        cores=tuple(Core(numa=0, socket=0, core=core_id, cpus=(core_id + 8, core_id + 40)) for core_id in range(cores)),
        address=f"10.0.0.{number}",
        interface="ib0",
    )


def test_ranks_get_the_cores_of_the_allocation(tmp_path: Path) -> None:
    config = config_of(tmp_path, CONFIG_OF)
    layout = job_layout.create_layout(config, [hello(1), hello(2), hello(3)])
    assert [(rank.rank, rank.node, rank.cpus, rank.threads) for rank in layout.ranks] == [
        (0, "n1", (8, 9), 2),
        (1, "n1", (10, 11), 2),
        (2, "n2", (8, 9), 2),
        (3, "n2", (10, 11), 2),
    ]
    assert layout.spare_hosts == {"n3": "n3"}
    assert layout.entry("n2").env["GLOO_SOCKET_IFNAME"] == "ib0"
    files = job_layout.run_files(config, [hello(1), hello(2), hello(3)], {})
    assert files["hostfile"] == "n1:2\nn2:2\n"
    assert json.loads(files["env.json"])["MASTER_ADDR"] == "10.0.0.1"


def test_spare_nodes_without_bf16_count_for_the_precision(tmp_path: Path) -> None:
    config = config_of(tmp_path, CONFIG_OF)
    slow = replace(hello(3), flags=("avx2",))
    layout = job_layout.create_layout(config, [hello(1), hello(2), slow])
    assert layout.spares_without_bf16 == ("n3",)
    assert layouts.parse(layouts.render(layout)) == layout
    assert job_layout.create_layout(config, [hello(1), hello(2), hello(3)]).spares_without_bf16 == ()


def test_the_launcher_command_has_the_address_of_node0(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"nodes": "2", "launcher": "torchrun"})
    command = job_layout.launcher_command(config, "10.0.0.1")
    assert any(argument.startswith("--meet=10.0.0.1:") for argument in command)
    assert not any(NODE0 in argument for argument in command)


def test_too_few_cores_and_missing_bf16_are_reported(tmp_path: Path) -> None:
    config = config_of(tmp_path, CONFIG_OF)
    with pytest.raises(job_layout.LayoutError, match="n1 gives this job 1 core, but --ppn is 2"):
        job_layout.check_nodes(config, [hello(1, cores=1)])
    config = config_of(tmp_path, {**CONFIG_OF, "precision": "bf16"})
    with pytest.raises(job_layout.LayoutError, match="n2 has no BF16 instructions"):
        job_layout.check_nodes(config, [hello(1), replace(hello(2), flags=())])


def test_cpu_flags_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, CONFIG_OF)
    wrong = replace(hello(2), flags=("avx2", "avx512_bf16"))
    with pytest.raises(job_layout.LayoutError, match="n2 reports wrong CPU flags: avx512_bf16 without avx512f"):
        job_layout.check_nodes(config, [hello(1), wrong])


@pytest.mark.parametrize(
    ("text", "number", "granted"), [("2(x3),4", 2, 2), ("2(x3),4", 3, 4), ("8", 0, 8), ("", 0, 16)]
)
def test_the_cpus_of_the_job_on_a_node(text: str, number: int, granted: int) -> None:
    environ = {"SLURM_JOB_CPUS_PER_NODE": text, "SLURM_NODEID": str(number)}
    assert granted_cpus(environ, 16) == granted


def image_settings(*pairs: str, image: str = "/shared/torch.sif") -> SlurmSettings:
    return slurm_settings(None, ("login=login1", *pairs), {}, image=image)


@pytest.mark.parametrize(
    ("asked", "pairs", "image", "words"),
    [
        ({}, (), "docker://torch", "runs do not pull images"),
        ({}, (), "nvcr.io#torch", "runs do not pull images"),
        ({}, (), "torch.sif", "not an absolute path"),
        ({}, ("container-mounts=data",), "/torch.sif", "not SOURCE:TARGET"),
        ({}, ("container-mounts=/a,b:/a",), "/torch.sqsh", "not SOURCE:TARGET"),
        ({}, ("container-arguments=/torch2.sif",), "/torch.sif", "not an option"),
        ({}, ("container-arguments=--pid",), "/torch.sif", "orch sets this option itself"),
        ({}, ("container-arguments=--container-image=a",), "/torch.sqsh", "orch sets this option itself"),
        ({"launcher": "mpirun"}, (), "/torch.sqsh", "Pyxis only runs ranks that srun starts"),
        ({"backend": "mpi", "launcher": "mpirun"}, (), "/torch.sif", "run without containers"),
        ({"docker_image": "torch"}, (), "/torch.sif", "--container IMAGE"),
    ],
)
def test_impossible_images_are_refused(
    asked: dict[str, object], pairs: tuple[str, ...], image: str, words: str
) -> None:
    request = replace(request_of({"nodes": "2"}), **asked)  # type: ignore[arg-type]
    settings = image_settings(*pairs, image=image)

    def plan() -> Plan:
        check_refused(request, REFUSES)
        return plan_slurm(request, inputs_of(settings), SITE)

    with pytest.raises(OrchError) as refused:
        plan()
    assert words in f"{refused.value.message} {refused.value.hint}"


def test_a_relative_image_path_starts_at_the_current_folder_or_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="no such image"):
        check_image_exists(slurm_settings(None, (), {}, image="torch.sif"))
    (tmp_path / "torch.sif").touch()
    check_image_exists(slurm_settings(None, (), {}, image="torch.sif"))
    file = tmp_path / "site" / "orch-slurm.toml"
    file.parent.mkdir()
    file.write_text('[container]\nimage = "../torch.sif"\npython = "/opt/bin/python"\n')
    for result in (
        slurm_settings(None, ("container-python=/opt/bin/python",), {}, image="torch.sif"),
        slurm_settings(file, (), {}),
    ):
        assert result.image == Image(path=str(tmp_path / "torch.sif"), python="/opt/bin/python")
    assert slurm_settings(file, (), {}, image="").image is None


def test_an_image_needs_no_stack_on_the_nodes() -> None:
    """Ignore the packages of the interpreter that starts the ranks: the image has its own torch."""
    inputs = inputs_of(image_settings())
    bare = replace(inputs, facts=replace(inputs.facts, packages={}))
    config = plan_run(request_of({"nodes": "2"}), bare, SITE).config
    assert (config.torch, config.preload) == (None, ())
    spec = container.parse(config.files["container.json"])
    assert (spec.engine, spec.image) == ("apptainer", "/shared/torch.sif")
    assert spec.preload == load.stack("current").preload


def test_a_rank_in_an_image_of_apptainer_is_started_without_a_secret_in_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = plan_run(request_of(), inputs_of(image_settings()), SITE).config
    spec = container.parse(config.files["container.json"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContainerError, match="neither apptainer nor singularity"):
        containers.exec_command(tmp_path, spec, node="n1", rank=1)
    (tmp_path / "singularity").write_text("#!/bin/sh\n")
    (tmp_path / "singularity").chmod(0o755)
    argv = containers.exec_command(tmp_path, spec, node="n1", rank=1)
    assert argv[:2] == ["singularity", "exec"]
    assert argv[2 : 2 + len(spec.options)] == list(spec.options)
    assert argv[2 + len(spec.options) :] == [
        *("--env", f"ORCH_RUN_DIR={tmp_path}", "--env", "RANK=1", "/shared/torch.sif"),
        *("python3", "-u", str(TRAIN / "node.py"), "contained-rank", str(tmp_path)),
    ]


@pytest.mark.parametrize(
    ("stderr", "explanation"),
    [
        (
            "\x1b[91mERROR  : Failed to create user namespace: not allowed to create user namespace\n\x1b[0m",
            "not allowed to create user namespace. An administrator must allow",
        ),
        (
            "FATAL:   container creation failed: image driver mount failure: squashfuse_ll exited: "
            "fuse: failed to open /dev/fuse: Permission denied",
            "Permission denied. Nodes need squashfuse",
        ),
        ('FATAL:   "nosuch": executable file not found in $PATH', "container-python=PATH"),
    ],
)
def test_apptainer_errors_are_explained_with_a_remedy(stderr: str, explanation: str) -> None:
    assert explanation in explain_apptainer_error(stderr)
    assert "\x1b" not in explain_apptainer_error(stderr)


def test_ranks_run_from_the_folder_of_their_node(tmp_path: Path) -> None:
    root, digest = tmp_path / "shared", "ab" * 32
    settings = slurm_settings(None, (f"root={root}", "local=/scratch/orch"), {})
    with pytest.raises(RequestError, match="no archive of stack 'current'") as missing:
        local_stack(settings, "current")
    assert "orch provision --on slurm" in missing.value.hint
    (root / "archives").mkdir(parents=True)
    archive = {"file": "current-abab.tar", "sha256": digest, "tree": "cd"}
    (root / "archives" / "current.json").write_text(json.dumps(archive))
    stack = local_stack(settings, "current")
    assert stack == protocol.LocalStack(
        folder=f"/scratch/orch/stacks/current-{digest[:16]}", archive=f"{root}/archives/current-abab.tar", sha256=digest
    )
    inputs = replace(inputs_of(settings), local=stack)
    for launcher in ("srun", "mpirun"):
        decided = plan_run(request_of({"launcher": launcher}), inputs, SITE)
        assert f"{stack.folder}/bin/python" in decided.config.launcher
        assert decided.plan.run.python == inputs.python, "what starts the run is on the shared folder"
    (root / "archives" / "current.json").write_text(json.dumps({**archive, "file": "../../x"}))
    with pytest.raises(OrchError, match="is damaged"):
        local_stack(settings, "current")


@pytest.mark.parametrize("pairs", [("local=/s",), ("local=/s", "root=/r", "python=/p")])
def test_a_folder_of_the_nodes_is_filled_from_a_shared_one(pairs: tuple[str, ...]) -> None:
    with pytest.raises(PlanError, match="needs root="):
        slurm_settings(None, pairs, {}).check()


@pytest.mark.parametrize(
    ("asked", "tasks"),
    [
        (("learning_rate=1e-5,3e-5,1e-4%2",), "0-2%2"),
        (("learning_rate=1e-5,3e-5%1", "max_seq_length=64,128"), "0-3%1"),
        (("learning_rate=1e-5,3e-5",), "0-1"),
    ],
)
def test_an_array_may_limit_the_tasks_that_run_at_once(asked: tuple[str, ...], tasks: str) -> None:
    array_plan = array_of(*asked)
    assert f"#SBATCH --array={tasks}\n" in array_plan.describe()
    assert not any("%" in decision.describe() for plan in array_plan.array for decision in plan.run.decisions)


@pytest.mark.parametrize("asked", [("a=1,2%0",), ("a=1,2%2", "b=3%2"), ("a=%2",)])
def test_invalid_or_repeated_limits_of_an_array_are_refused(asked: tuple[str, ...]) -> None:
    with pytest.raises(PlanError):
        array.max_active_runs(asked), array.combinations(asked)


def test_a_percent_sign_in_a_value_is_no_limit() -> None:
    settings = ("a=10%,20%x",)
    assert (array.max_active_runs(settings), array.combinations(settings)) == (
        None,
        [(("a", "10%"),), (("a", "20%x"),)],
    )


def test_setup_commands_run_before_the_job_and_a_failing_one_ends_it(tmp_path: Path) -> None:
    settings = slurm_settings(None, ("setup=export GREETING='a b'", "setup=test -d /nowhere"), {})
    script = plan_of({}, settings).describe().replace("/shared/alice/runs", str(tmp_path))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: --slurm setup=test -d /nowhere failed\n"
    script = script.replace("test -d /nowhere\n", 'echo "$GREETING" $UNSET\n')
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith("a b\n")


def test_setup_and_max_requeues_from_a_file_and_from_pairs(tmp_path: Path) -> None:
    source = tmp_path / "orch-slurm.toml"
    source.write_text('setup = ["module load gcc"]\nmax-requeues = 3\n')
    result = slurm_settings(source, ("setup=module load mpi",), {})
    assert (result.setup, result.max_requeues) == (("module load gcc", "module load mpi"), 3)
    assert slurm_settings(source, ("max-requeues=5",), {}).max_requeues == 5
    for pairs in (("setup=a\nb",), ("setup= ",), ("max-requeues=-1",)):
        with pytest.raises(OrchError):
            slurm_settings(None, pairs, {}).check()


@pytest.mark.parametrize(
    ("options", "memory"),
    [
        ((), "0"),
        (("exclusive",), "0"),
        (("exclusive", "mem=4G"), "4G"),
        (("exclusive", "mem-per-cpu=1G"), None),
        (("cpus-per-task=2",), None),
        (("exclusive=user",), None),
    ],
    ids=["default", "exclusive", "mem", "mem-per-cpu", "shared", "exclusive-user"],
)
def test_whole_nodes_come_with_all_of_their_memory(options: tuple[str, ...], memory: str | None) -> None:
    assert with_size(slurm_settings(None, options, {})).sbatch.get("mem") == memory


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2", 120),
        ("2:30", 150),
        ("1:00:00", 3600),
        ("1-0", 86_400),
        ("1-2:30", 95_400),
        ("0-0:02:30", 150),
        ("UNLIMITED", None),
        ("1:2:3:4", None),
        ("", None),
    ],
)
def test_time_limits_are_read_as_sbatch_reads_them(text: str, seconds: int | None) -> None:
    assert time_seconds(text) == seconds


def test_a_time_limit_below_the_reserve_for_a_checkpoint_is_reported() -> None:
    def reason(*pairs: str) -> str:
        decisions = plan_of({}, slurm_settings(None, pairs, {})).run.decisions
        return next(decision.reason for decision in decisions if decision.topic == "slurm time")

    assert "reserved for a checkpoint" in reason("time=2")
    assert reason("time=10") == "requested"
    assert reason("time=2", "signal=B:TERM@30") == "requested"


def test_the_hint_for_a_missing_mpi_names_the_shared_folder_and_no_inventory() -> None:
    inputs = inputs_of()
    bare = replace(inputs, facts=replace(inputs.facts, mpi={}))
    request = request_of({"launcher": "mpirun", "mpi": "mpich"})
    with pytest.raises(PlanError, match="has no MPICH") as caught:
        plan_slurm(request, bare, SITE)
    assert "pip install --prefix /shared/orch/stacks/current/mpi/mpich mpich" in caught.value.hint
    assert "inventory" not in caught.value.hint


def test_last_is_not_a_refused_run(tmp_path: Path) -> None:
    for number, state in enumerate(("done", "refused")):
        run_id = f"2026010{number + 1}-120000-qa-0000"
        folder = make_run(
            tmp_path, run_id, created=float(number), target="slurm", location={"name": f"orch-{number}", "job": "12"}
        )
        (folder / "outcome.json").write_text(json.dumps(make_outcome(state)))
    assert find.find_run(tmp_path, "last", "slurm", ignore)[0].run_id == "20260101-120000-qa-0000"
