"""Install stacks from a package index, and provision with orch installed from its own wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.conftest import CHECKOUT
from tests.cluster.sites import ROOT, SITE_PACKAGES, Site, drift, nodes_by_name, run_on
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.cluster

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orch/wheelhouses"


@pytest.fixture
def index(site: Site, tmp_path: Path) -> Iterator[str]:
    """Serve the newest wheelhouse as a package index to the nodes, and yield its URL.

    Like a public index, it has neither the bindings nor uv.
    """
    locks = CACHE.glob("current-cp311-*/lock.json")
    wheelhouse = max(locks, key=lambda path: path.stat().st_mtime).parent
    folder = tmp_path / "served"
    folder.mkdir()
    for wheel in wheelhouse.glob("*.whl"):
        if not wheel.name.startswith(("oneccl_bind_pt-", "uv-")):
            (folder / wheel.name).symlink_to(wheel)
    command = [sys.executable, str(CHECKOUT / "test-cluster/index"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_nodes_install_wheels_from_index(site: Site, index: str) -> None:
    removed = f"{SITE_PACKAGES}/accelerate {SITE_PACKAGES}/oneccl_bindings_for_pytorch {ROOT}/bin/uv"
    run_on(site, "node1", "sh", "-c", f"rm -r {removed}")
    site.write_inventory("node0", "node1", stack_index_url=index)
    expected = {"accelerate", "oneccl-bind-pt"}
    assert drift(site.orch("--wheels", "index")) == {"node0": set(), "node1": expected}
    assert run_on(site, "node1", "ls", f"{SITE_PACKAGES}/accelerate/__init__.py")
    assert site.orch("--dry-run")["state"] == "done"


def test_packages_of_the_user_are_installed_for_all_runs_and_removed_with_a_note(site: Site, tmp_path: Path) -> None:
    make_wheel(tmp_path, "orch_test_greeter", "1.0", requires=["orch-test-names>=2"], module="VERSION = '1.0'")
    make_wheel(tmp_path, "orch_test_names", "2.0", module="VERSION = '2.0'")
    make_wheel(tmp_path, "orch_test_torch", "1.0", requires=["torch<2"])
    needs = tmp_path / "needs.txt"
    needs.write_text(f"--no-index\n--find-links {tmp_path}\norch-test-greeter\n")
    script = tmp_path / "greet.py"
    script.write_text("import orch_test_greeter\nprint('GREETER', orch_test_greeter.VERSION, flush=True)\n")
    run = (str(script), "--backend", "gloo", "--launcher", "torchrun", "--project", "none")
    site.write_inventory("node0", "node1")
    added = {"orch-test-greeter", "orch-test-names"}
    assert drift(site.orch("--requirements", str(needs))) == {"node0": added, "node1": added}
    assert site.train(*run)["state"] == "done"
    site.write_inventory("node0", "node1", orch_requirements=str(needs))
    assert site.orch("--dry-run")["state"] == "done"
    needs.write_text(needs.read_text() + "orch-test-torch\n")
    refused = site.orch(code=2)["stderr"]
    assert "orch-test-torch depend" in refused
    assert "is the version of stack 'current'" in refused
    site.write_inventory("node0", "node1")
    done = site.run("provision", str(site.inventory), seconds=900)
    assert "node1: removes orch-test-greeter 1.0, orch-test-names 2.0, which neither stack" in done.stderr
    refused = site.run("train", *run, "--inventory", str(site.inventory), seconds=60)
    assert "greet.py imports orch_test_greeter" in refused.stderr


@pytest.fixture
def site_of_installed_orch(site: Site, tmp_path: Path) -> Site:
    """Return the site with an orch that is installed from its wheel in a new environment outside the checkout."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = tmp_path / "venv/bin/python"
    options = ["--quiet", "--no-compile", "--find-links", str(tmp_path)]
    for command in (
        [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(CHECKOUT)],
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")],
        [*pip, "--python", str(python), "install", *options, "orch-train==0.1.0"],
    ):
        subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    program = (str(python), "-P", str(python.with_name("orch")))
    return replace(site, program=program, variables={"PYTHONPATH": ""})


def test_orch_installed_from_its_wheel_provisions(site_of_installed_orch: Site) -> None:
    site = site_of_installed_orch
    site.write_inventory("node0", "node1")
    run_on(site, "node1", "rm", f"{ROOT}/train/node.py")
    report = site.orch()
    assert drift(report) == {"node0": set(), "node1": {"train/node.py"}}
    assert [node["changed"] for node in nodes_by_name(report).values()] == [0, 1]
