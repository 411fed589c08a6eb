"""Run a user's project of several files on a real Slurm, from its login node and from a laptop."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.slurm.laptop import Laptop
from tests.slurm.runs import PROJECT_ON_TWO_NODES
from tests.slurm.site import USER, Site
from tests.support.projects import ARGUMENTS, RESULT, write_project

SCRIPT = "my project/train.py"
TRAIN = ("train", SCRIPT, *PROJECT_ON_TWO_NODES)
OUTPUT = ["conf/small.json", "out/model.txt"]


@pytest.fixture
def project(site: Site) -> Path:
    """Return the project in the user's home; the hosts have no git."""
    folder = site.home / "my project"
    shutil.rmtree(folder, ignore_errors=True)
    write_project(folder, git=False)
    return folder


def check_outputs(copy: Path) -> None:
    """Check that a run has written its files into a copy of the project."""
    assert json.loads((copy / "conf/small.json").read_text()) == {"steps": 4}
    assert (copy / "out/model.txt").read_text() == "trained"


def test_project_of_several_files_trains_on_two_nodes(site: Site, project: Path) -> None:
    done = site.orch(*TRAIN, "--json", "--", *ARGUMENTS)
    assert done.returncode == 0, done.stdout + done.stderr
    name = json.loads(done.stdout)["run_id"]
    assert site.orch("logs", name).stdout.count(f"RESULT {RESULT}") == 2
    check_outputs(site.home / "runs" / name / "project")
    assert json.loads((project / "conf/small.json").read_text()) == {"steps": 3}
    fetched = json.loads(site.orch("fetch", name, "--json").stdout)
    assert "without a login node" in site.orch("fetch", name, "--code").stderr
    assert (fetched["folder"], fetched["files"]) == (f"/home/{USER}/runs/{name}/project", len(OUTPUT))


@pytest.mark.usefixtures("project")
def test_runs_of_an_array_have_their_own_copies(site: Site) -> None:
    done = site.orch(*TRAIN, "--array", "seed=1,2", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    copies = sorted((site.home / "runs").glob("*-train-*-[01]/project"))[-2:]
    for copy in copies:
        check_outputs(copy)
    assert len(copies) == 2


def test_project_of_a_laptop_goes_through_the_login_node(site: Site, laptop: Laptop) -> None:
    write_project(laptop.home / "my project")
    result = json.loads(laptop.orch(*TRAIN, "--json", "--", *ARGUMENTS))
    name = result["run_id"]
    assert laptop.orch("logs", name).count(f"RESULT {RESULT}") == 2
    check_outputs(site.home / "runs" / name / "project")
    fetched = json.loads(laptop.orch("fetch", name, "--json"))
    assert sorted(fetched["brought"]) == OUTPUT
    check_outputs(laptop.home / "runs" / name / "output")
    laptop.orch("fetch", name, "--code")
    assert json.loads((laptop.home / "runs" / name / "code/conf/small.json").read_text()) == {"steps": 3}
    (lock,) = (path for path in (site.home / "runs/.orch/store").glob(".*.lock") if name in path.read_text())
    sent = lock.with_name(lock.name[1:].removesuffix(".lock"))
    os.utime(lock, (0, 0))
    assert str(sent.name) in laptop.orch("clean", "--inventory", "slurm")
    assert not sent.exists()
