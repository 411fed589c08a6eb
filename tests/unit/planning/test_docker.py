"""Plans with containers: their messages, the files of each node, and the errors."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import load
from orchestrator.errors import PlanError, RequestError
from orchestrator.planning.containers import Docker, bind, mount_option
from orchestrator.planning.plan import Plan, PutFile
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import HOSTILE_TEXTS, make_cluster
from tests.support import plans

DOCKER = Docker(image="orch:current")
SITE_OF_TWO = replace(plans.REMOTE_SITE, root="/opt/orch")


def plan(stack: Stack, docker: Docker = DOCKER, **fields: object) -> Plan:
    request = replace(plans.QA_REQUEST, ppn=2, **fields)
    inputs = plans.make_inputs(make_cluster(*plans.TWO_NODES), plans.QA_RECIPE, stack, docker=docker)
    return plan_train(request, inputs, SITE_OF_TWO)


def container(plan: Plan) -> dict[str, Any]:
    (step,) = (s for s in plan.steps if isinstance(s, PutFile) and s.path.endswith("container.json"))
    assert step.nodes == plan.run.nodes
    return dict(json.loads(step.content))


def test_golden_plans(test_stack: Stack) -> None:
    """Do not pass env_file to the engine, which would show the variables to all its users."""
    docker = replace(DOCKER, mounts=("/data:/data:ro",), env_file="/etc/own env", arguments=("--cap-add=SYS_NICE",))
    assert plan(test_stack, docker).describe() == (plans.GOLDEN / "docker.sh").read_text()
    result = plan(test_stack, replace(DOCKER, start="node", env_file="/etc/own env"))
    assert result.describe() == (plans.GOLDEN / "docker-start-node.sh").read_text()


def test_folders_of_script_runs_and_programs_exist_on_this_machine(test_stack: Stack) -> None:
    inputs = plans.make_inputs(make_cluster(*plans.ONE_NODE), plans.USER_SCRIPT, test_stack, docker=DOCKER)
    result = plan_train(plans.QA_REQUEST, inputs, plans.LOCAL_SITE)
    mounted = [word for word in container(result)["options"] if word.startswith("type=bind")]
    assert mounted == [bind(folder) for folder in ("/home/me", "/orch/train", "/runs")]


def test_ccl_takes_no_socket_of_the_launcher_into_the_container(test_stack: Stack) -> None:
    ccl = load.stack("current")
    nodes = tuple(replace(node, facts=replace(node.facts, packages=dict(ccl.requirements))) for node in plans.TWO_NODES)
    for docker, transport in ((None, "over MPI"), (DOCKER, "over libfabric")):
        request = replace(plans.QA_REQUEST, ppn=2, backend="ccl")
        inputs = plans.make_inputs(make_cluster(*nodes), plans.QA_RECIPE, ccl, docker=docker)
        assert transport in plan_train(request, inputs, SITE_OF_TWO).describe()


def test_any_path_can_be_mounted() -> None:
    for folder in [f"/x/{word}" for word in HOSTILE_TEXTS if word]:
        (fields,) = csv.reader(io.StringIO(bind(folder), newline=""), strict=True)
        assert fields == ["type=bind", f"source={folder}", f"target={folder}"]
    assert mount_option("/a:/b:z") == ("--volume", "/a:/b:z")


def test_settings_that_the_engine_would_misread_are_refused(test_stack: Stack) -> None:
    for changes, problem in (
        ({"image": "-v"}, "not the name of an image"),
        ({"mounts": ("data",)}, "'data' is not SOURCE:TARGET"),
        ({"arguments": ("busybox",)}, "'busybox' is not an option"),
        ({"arguments": ("--network=none",)}, "orch sets --network itself"),
        *(({"arguments": (word,)}, "is not an option") for word in HOSTILE_TEXTS if word != "-n"),
        *(({"image": word}, "not the name of an image") for word in HOSTILE_TEXTS),
    ):
        with pytest.raises(PlanError, match=re.escape(problem)):
            plan(test_stack, replace(DOCKER, **changes))


def test_options_that_the_entrypoint_decides_are_refused(test_stack: Stack) -> None:
    docker = replace(DOCKER, start="node")
    for fields in ({"launcher": "torchrun"}, {"backend": "gloo"}, {"ccl_workers": 1}):
        with pytest.raises(PlanError, match="the entrypoint of orch:current starts the ranks"):
            plan(test_stack, docker, **fields)


def inventory(folder: Path, text: str) -> str:
    path = folder / "lab.yml"
    path.write_text(f"all:\n  hosts:\n    a: {{}}\n    b: {{}}\n  vars:\n    orch_docker: {text}\n")
    return str(path)


def test_docker_options_win_over_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lab = inventory(tmp_path, "{shm: 2g, mounts: ['/a:/a'], load: image.tar}")
    assert load.docker("x", (), lab) == Docker(image="x", shm="2g", mounts=("/a:/a",))
    settings = ("shm=3g", "mounts=/b:/c", "arguments=--cap-add=SYS_NICE", "memlock=inherit")
    assert load.docker("x", settings, lab) == Docker(
        image="x", shm="3g", mounts=("/a:/a", "/b:/c"), arguments=("--cap-add=SYS_NICE",), memlock="inherit"
    )
    assert load.docker(None, (), lab) is None
    for settings, message in ((("shm",), "KEY=VALUE"), (("smh=1g",), "unknown key")):
        with pytest.raises(RequestError, match=message):
            load.docker("x", settings, lab)
    with pytest.raises(RequestError, match="requires --image"):
        load.docker(None, ("shm=1g",), lab)
    with pytest.raises(RequestError, match=re.escape("orch_docker.smh")):
        load.docker("x", (), inventory(tmp_path, "{smh: 2g}"))
    with pytest.raises(RequestError, match="orch_docker differs between the hosts"):
        load.common_docker_variable({"a": {"orch_docker": {"load": "a.tar"}}, "b": {"orch_docker": {"load": "b.tar"}}})


def archive(folder: Path, manifest: object) -> Path:
    """Write the parts of a `docker save` archive that hold the name and the id of the image."""
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(folder / "image file.tar", "w") as tar:
        tar.add(folder / "manifest.json", "manifest.json")
    return folder / "image file.tar"


def test_name_and_id_of_an_image_are_read_from_its_file(tmp_path: Path) -> None:
    old = [{"Config": "0123.json", "RepoTags": ["orch:current", "orch:latest"]}]
    new = [{"Config": "blobs/sha256/4567", "RepoTags": ["orch:current"]}]
    for manifest, image in ((old, "0123"), (new, "4567")):
        assert load.image_file(archive(tmp_path, manifest)) == ("orch:current", f"sha256:{image}")
    assert load.image_file(archive(tmp_path, old), "orch")[0] == "orch:latest"
    with pytest.raises(RequestError, match="contains orch:current, but not other:latest"):
        load.image_file(archive(tmp_path, new), "other")
    file = archive(tmp_path, new).read_bytes()
    for compress in (gzip.compress, lzma.compress, bz2.compress):
        compressed = compress(file)
        damaged = compressed[: len(compressed) // 2]
        for content in (damaged, damaged + b"\xff" * len(damaged), file[:700], b"no archive"):
            (tmp_path / "damaged.tar").write_bytes(content)
            with pytest.raises(RequestError, match="is not an image file"):
                load.image_file(tmp_path / "damaged.tar")
