"""Check the folders that a plan sends to a login node, or expects on the nodes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.content_store import hash_of
from orch_node.protocol import batch as protocol

from orchestrator import load
from orchestrator.errors import OrchError
from orchestrator.files import TRAIN, source_files
from orchestrator.model.recipe import Recipe
from orchestrator.planning.plan import CopyFiles, Plan, SendFolder, StoreFolder, SubmitScript
from orchestrator.targets.batch.plan import LOGIN, plan_job
from orchestrator.targets.connections.local import Local
from orchestrator.targets.execute import do, packed
from tests.support.slurm_plans import SITE, make_inputs, make_request, slurm_settings


def test_sent_folder_is_complete_or_absent(tmp_path: Path) -> None:
    """Send the folder twice, the second time over the existing copy, and then a truncated one."""
    step = SendFolder(nodes=(LOGIN,), source=str(TRAIN), path=str(tmp_path / "a b" / "train"))
    for _ in range(2):
        do(step, {LOGIN.node: Local()}, None)
    with packed(TRAIN, source_files(TRAIN)) as archive:
        (tmp_path / "truncated").write_bytes(archive.read_bytes()[:5000])
    assert (tmp_path / "a b" / "train" / "node.py").read_bytes() == (TRAIN / "node.py").read_bytes()
    assert sorted(os.listdir(tmp_path / "a b")) == [".train.lock", "train"]
    truncated_step = replace(step, path=str(tmp_path / "other"))
    with pytest.raises(OrchError, match="tar"):
        Local().feed(truncated_step.unpack(), tmp_path / "truncated")
    assert sorted(os.listdir(tmp_path)) == ["a b", "truncated"]


@pytest.fixture
def project(tmp_path: Path) -> Recipe:
    """Return a script with its project, which has an executable, a link and a file that nobody may write."""
    source = tmp_path / "my project"
    (source / "bin").mkdir(parents=True)
    for name, mode in (("train.py", 0o644), ("bin/it's $(x)", 0o755), ("locked", 0o444)):
        (source / name).write_text(name)
        (source / name).chmod(mode)
    (source / "link").symlink_to("bin")
    recipe = Recipe(name="train", script=str(source / "train.py"), own_script=True)
    return replace(recipe, project=load.project_of(recipe, str(source), limit=1, left_out=()))


def plan_project(recipe: Recipe, folder: Path, *settings: str) -> Plan:
    """Return the plan of a script whose run is in a folder."""
    inputs = make_inputs(slurm_settings(None, settings, {}))
    inputs = replace(inputs, loaded=replace(inputs.loaded, recipe=recipe))
    site = replace(SITE, run_dir=str(folder / SITE.run_id), store=f"{folder}/.orch/store")
    return plan_job(make_request(), inputs, site)


def test_run_gets_a_writable_copy_of_the_project(tmp_path: Path, project: Recipe) -> None:
    copy, submit = plan_project(project, tmp_path).steps
    assert isinstance(copy, CopyFiles)
    assert "#   bin/it's $(x)" in copy.describe()
    do(copy, {}, None)
    assert Path(copy.path, "locked").stat().st_mode & 0o200
    assert copy.path == str(tmp_path / SITE.run_id / "project")
    assert hash_of(Path(copy.path)) == copy.digest
    assert isinstance(submit, SubmitScript)
    config = protocol.parse(submit.script.partition("job.json <<'ORCH_END_OF_FILE'\n")[2].partition("\nORCH_END")[0])
    assert config.working_directory == copy.path
    assert config.launcher[-1] == f"{copy.path}/train.py"


def test_project_that_changes_after_the_plan_is_refused(tmp_path: Path, project: Recipe) -> None:
    copy, _ = plan_project(project, tmp_path).steps
    Path(project.script).write_text("changed")
    with pytest.raises(OrchError, match="has changed since the run was planned"):
        do(copy, {}, None)
    Path(project.script).unlink()
    with pytest.raises(OrchError, match=r"cannot be copied: \S+ project/train.py: No such file"):
        do(copy, {}, None)


def test_project_goes_into_the_store_of_a_login_node(tmp_path: Path, project: Recipe) -> None:
    steps = plan_project(project, tmp_path, "login=cluster").steps
    assert project.project is not None
    (step,) = (step for step in steps if isinstance(step, StoreFolder))
    assert step.path == f"{tmp_path}/.orch/store/{project.project.digest}"
    assert step.copy == f"{tmp_path}/{SITE.run_id}/project"
    assert [node.node for node in step.nodes] == ["cluster"]
