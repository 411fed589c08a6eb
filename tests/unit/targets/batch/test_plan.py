"""Check the folders that a plan sends to a login node, or expects on the nodes, and the next attempt of a run."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.content_store import hash_of
from orch_node.protocol import batch as protocol

from orchestrator import load
from orchestrator.errors import PlanError
from orchestrator.files import TRAIN, source_files
from orchestrator.model.facts import Gpu
from orchestrator.model.recipe import Recipe
from orchestrator.operations import train
from orchestrator.planning.plan import Plan, RunProgram, SendFolder, StoreFolder, SubmitScript
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.targets.batch.pbs import PBS
from orchestrator.targets.batch.plan import LOGIN, with_size
from orchestrator.targets.batch.slurm import SLURM
from orchestrator.targets.connections.local import Local
from orchestrator.targets.execute import execute, packed
from tests.support import slurm_plans
from tests.support.environments import make_environment
from tests.support.files import write_files
from tests.support.recorded import RUN_RECORD
from tests.support.slurm_plans import SITE, make_request, make_settings, plan_request


def test_sent_folder_is_complete_or_absent(tmp_path: Path) -> None:
    """Send the folder twice, the second time over the existing copy, and then a truncated one."""
    step = SendFolder(nodes=(LOGIN,), source=str(TRAIN), path=str(tmp_path / "a b" / "train"))
    for _ in range(2):
        execute([step], {LOGIN.node: Local()})
    with packed(TRAIN, source_files(TRAIN)) as archive:
        (tmp_path / "truncated").write_bytes(archive.read_bytes()[:5000])
    assert (tmp_path / "a b" / "train" / "node.py").read_bytes() == (TRAIN / "node.py").read_bytes()
    assert sorted(os.listdir(tmp_path / "a b")) == [".train.lock", "train"]
    truncated_step = replace(step, path=str(tmp_path / "other"))
    result = Local().capture(truncated_step.unpack(), seconds=60, source=tmp_path / "truncated")
    assert result.code != 0
    assert "tar" in result.err
    assert sorted(os.listdir(tmp_path)) == ["a b", "truncated"]


@pytest.fixture
def project(tmp_path: Path) -> Recipe:
    """Return a script with its project, which has an executable, a link and a file that nobody may write."""
    source = tmp_path / "my project"
    for name, mode in (("train.py", 0o644), ("bin/it's $(x)", 0o755), ("locked", 0o444)):
        (write_files(source, {name: name}) / name).chmod(mode)
    (source / "link").symlink_to("bin")
    recipe = Recipe(name="train", script=str(source / "train.py"), own_script=True)
    return replace(recipe, project=load.project_of(recipe, str(source), limit=1, left_out=()))


def plan_project(recipe: Recipe, folder: Path, *settings: str) -> Plan:
    """Return the plan of a script whose run is in a folder."""
    site = replace(slurm_plans.SITE, run_dir=str(folder / slurm_plans.SITE.run_id), train=str(TRAIN))
    site = replace(site, store=f"{folder}/.orch/store", store_here=f"{folder}/store")
    loaded = replace(slurm_plans.make_inputs(), recipe=recipe)
    return slurm_plans.plan_request(
        slurm_plans.make_request(), slurm_plans.slurm_settings(None, settings, {}), run_paths=site, loaded=loaded
    )


def test_run_gets_a_writable_copy_of_the_project(tmp_path: Path, project: Recipe) -> None:
    step, submit = plan_project(project, tmp_path).steps
    assert isinstance(step, StoreFolder)
    assert "#   bin/it's $(x)" in step.describe()
    assert step.title().endswith("project on this machine")
    execute([replace(step, node_program=(sys.executable, step.node_program[1]))], {LOGIN.node: Local()})
    assert Path(step.copy, "locked").stat().st_mode & 0o200
    assert step.copy == str(tmp_path / slurm_plans.SITE.run_id / "project")
    assert step.path == f"{tmp_path}/store/{hash_of(Path(step.copy))}"
    assert isinstance(submit, SubmitScript)
    config = protocol.parse(submit.script.partition("job.json <<'ORCH_END_OF_FILE'\n")[2].partition("\nORCH_END")[0])
    assert config.working_directory == step.copy
    assert config.launcher[-1] == f"{step.copy}/train.py"


LOGINS = ("-oProxyCommand=x", "a b", "host;id", "u@-x", "h/x", "a@b@c")  # of which none is a host


def test_impossible_requests_are_refused() -> None:
    for fields, settings, problem in (
        ({"launcher": "trainjob"}, {}, "--launcher trainjob does not run on Slurm"),
        ({"mpi": "intel"}, {}, "--launcher srun starts the ranks without mpirun"),
        ({"spare_nodes": 1}, {}, "--spare-nodes without --max-restarts"),
        *(({}, {"login": login}, "not a host name") for login in LOGINS),
        ({}, {"root": "relative"}, "root=relative: expected an absolute path"),
        ({}, {"options": {"comment": "two\nlines"}}, "cannot be printed"),
        ({}, {"options": {"x y": "1"}}, "not an option of sbatch"),
        *(
            ({}, {"options": {"signal": signal}}, "without a checkpoint")
            for signal in ("USR1@90", "B:SIGUSR1@90", "10")
        ),
    ):
        with pytest.raises(PlanError) as caught:
            slurm_plans.make_plan(fields, slurm_plans.make_settings(**settings))
        assert problem in caught.value.message


def test_gpus_of_a_node_are_those_that_the_job_requests() -> None:
    for options, gpus in (
        ({"gpus-per-node": "a100:2,h100:2"}, 4),
        ({"gpus": "h100:16"}, 8),
        ({"gres": "license:9,gpu:h100:4(S:0-1)"}, 4),
        ({"gres": "gres/gpu"}, 1),
        ({}, 0),
    ):
        assert SLURM.requested_gpus(options, 2) == gpus
        assert PBS.requested_gpus({"select": f"2:ncpus=64:ngpus={gpus}:mem=1gb"}, 2) == gpus
        assert PBS.requested_gpus({"select": "ncpus=4:myngpus=2"}, 1) == 0


def test_nccl_is_planned_from_the_request_and_not_from_the_login_host() -> None:
    settings, for_cpus = slurm_plans.make_settings(options={"gpus-per-node": "8"}), slurm_plans.make_host_facts()
    for_gpus = replace(for_cpus, packages={**for_cpus.packages, "torch": "2.13.0+cu130"})
    with_gpu = replace(for_gpus, gpus=(Gpu(index=0),))
    request = replace(slurm_plans.make_request({"nodes": 2}), backend="nccl")
    plan = slurm_plans.plan_request(request, settings, facts=for_gpus)
    decisions = {decision.topic: decision for decision in plan.decisions}
    assert decisions["ranks"].describe().startswith("ranks: 16 (8 on each node, one for each GPU that the job requests")
    assert decisions["gpus"].value == "8 x GPU on each of node-0, node-1"
    for message, ppn, batch, facts in (
        ("the job requests no GPUs", None, None, with_gpu),
        ("is built for CPUs", None, settings, for_cpus),
    ):
        with pytest.raises(PlanError, match=message):
            slurm_plans.plan_request(replace(request, ppn=ppn), batch, facts=facts)


def test_ranks_run_on_the_users_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("print(1)\n")
    make_environment(tmp_path / "empty")
    make_environment(tmp_path / "environment", without=["oneccl_bind"])
    request = TrainRequest(recipe="own.py", on="slurm", backend="gloo", python="environment/bin/python")
    plan = train.plan(request)
    assert plan.run.python == f"{tmp_path}/environment/bin/python"
    assert [decision.value for decision in plan.decisions if decision.topic == "python"] == [plan.run.python]
    with pytest.raises(PlanError, match="missing: torch") as exc_info:
        train.plan(replace(request, python="empty/bin/python"))
    assert f"{tmp_path}/" in exc_info.value.hint


def test_whole_nodes_come_with_all_of_their_memory() -> None:
    for options, memory in (
        ((), "0"),  # default
        (("exclusive", "mem=4G"), "4G"),
        (("exclusive", "mem-per-cpu=1G"), None),
        (("cpus-per-task=2",), None),  # shared
    ):
        assert with_size(slurm_plans.slurm_settings(None, options, {})).options.get("mem") == memory


RESUME = Resume(record=RUN_RECORD, state="stopped")


def test_next_attempt_is_another_job_in_the_same_folder() -> None:
    site, request = replace(SITE, resume=RESUME), make_request({"nodes": 2})
    prepare, submit = plan_request(request, run_paths=site).steps
    assert isinstance(prepare, RunProgram)
    assert prepare.command[1:] == (f"{SITE.train}/node.py", "prepare-attempt", SITE.run_dir, "slurm-job.json")
    assert isinstance(submit, SubmitScript)
    assert submit.run_dir == SITE.run_dir
    assert '"--first-attempt=2"' in submit.script
    *_, prepare, submit = plan_request(request, make_settings(login="login1"), run_paths=site).steps
    assert (prepare.command[0], prepare.nodes) == ("python3", submit.nodes), "prepared on the login node"
