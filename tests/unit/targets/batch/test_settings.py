"""Check runs whose ranks are in an image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from orch_node.agent import containers
from orch_node.agent.containers import ContainerError
from orch_node.protocol import container

from orchestrator import load
from orchestrator.errors import OrchError, RequestError
from orchestrator.files import TRAIN
from orchestrator.model.hosts import NodeCount
from orchestrator.planning.request import check_unsupported_options
from orchestrator.targets.batch.inputs import check_image_exists
from orchestrator.targets.batch.plan import plan_run
from orchestrator.targets.batch.settings import BatchSettings, Image
from orchestrator.targets.batch.slurm import SLURM
from orchestrator.targets.batch.target import unsupported_options
from tests.support.files import write_files, write_program
from tests.support.slurm_plans import make_host_facts, make_request, plan_request, slurm_settings


def make_settings(*image_options: str, image: str = "/shared/torch.sif") -> BatchSettings:
    return slurm_settings(None, ("login=login1",), {}, image=image, image_options=image_options)


def plan_with(fields: dict[str, Any], settings: BatchSettings) -> None:
    request = replace(make_request({"nodes": NodeCount(2)}), **fields)
    check_unsupported_options(request, unsupported_options(SLURM))
    plan_request(request, settings)


def test_impossible_images_are_refused() -> None:
    for fields, image_options, image, problem in (
        ({}, (), "docker://torch", "runs do not pull images"),
        ({}, (), "torch.sif", "not an absolute path"),
        ({}, ("mounts=/a,b:/a",), "/torch.sif", "not SOURCE:TARGET"),
        ({}, ("arguments=--pid",), "/torch.sif", "orch sets this option itself"),
        ({"backend": "mpi", "launcher": "mpirun"}, (), "/torch.sif", "run without containers"),
    ):
        with pytest.raises(OrchError) as refused:
            plan_with(fields, make_settings(*image_options, image=image))
        assert problem in f"{refused.value.message} {refused.value.hint}"


def test_relative_image_path_starts_at_the_current_folder_or_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="no such image"):
        check_image_exists(slurm_settings(None, (), {}, image="torch.sif"))
    (tmp_path / "torch.sif").touch()
    check_image_exists(slurm_settings(None, (), {}, image="torch.sif"))
    text = '[container]\nimage = "../torch.sif"\npython = "/opt/bin/python"\n'
    file = write_files(tmp_path / "site", {"orch-slurm.toml": text}) / "orch-slurm.toml"
    for result in (
        slurm_settings(None, (), {}, image="torch.sif", image_options=("python=/opt/bin/python",)),
        slurm_settings(file, (), {}),
    ):
        assert result.image == Image(path=str(tmp_path / "torch.sif"), python="/opt/bin/python")
    assert slurm_settings(file, (), {}, image="").image is None


def test_image_needs_no_stack_on_the_nodes() -> None:
    """Ignore the packages of the interpreter that starts the ranks: the image has its own torch."""
    bare = replace(make_host_facts(), packages={})
    _, config = plan_request(make_request({"nodes": NodeCount(2)}), make_settings(), facts=bare, planner=plan_run)
    assert (config.torch, config.preload) == (None, ())
    spec = container.parse(config.files["container.json"])
    assert (spec.engine, spec.image) == ("apptainer", "/shared/torch.sif")
    assert spec.preload == load.stack("current").preload


def test_rank_in_an_image_of_apptainer_is_started_without_a_secret_in_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, config = plan_request(make_request(), make_settings(), planner=plan_run)
    spec = container.parse(config.files["container.json"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContainerError, match="neither apptainer nor singularity"):
        containers.exec_command(tmp_path, spec, node="n1", rank=1)
    write_program(tmp_path / "singularity", "#!/bin/sh\n")
    argv = containers.exec_command(tmp_path, spec, node="n1", rank=1)
    assert argv[:2] == ["singularity", "exec"]
    assert argv[2 : 2 + len(spec.options)] == list(spec.options)
    assert argv[2 + len(spec.options) :] == [
        *("--env", f"ORCH_RUN_DIR={tmp_path}", "--env", "RANK=1", "/shared/torch.sif"),
        *("python3", "-u", str(TRAIN / "node.py"), "contained-rank", str(tmp_path)),
    ]
