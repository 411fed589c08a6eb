"""Repair drifted nodes from a package index, add packages of the user, and use an orch from its own wheel.

The cluster of these tests has two nodes. They come after all tests that need node2, which has the keys of another
cluster then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.conftest import CHECKOUT
from tests.cluster.sites import ROOT, SITE_PACKAGES, STACK, TOKEN, Site, drift, run_on
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.cluster

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orch/wheelhouses"
USER_FILE = f"{ROOT}/data/mine.txt"
# Programs that change node1, which has no uv because its stack is a copy, and what provisioning reports of that.
CHANGES = (
    f"echo x >> {SITE_PACKAGES}/torchmetrics/__init__.py",
    f"rm -r {SITE_PACKAGES}/accelerate {SITE_PACKAGES}/oneccl_bindings_for_pytorch {STACK}/mpi/mpich",
    f"rm {ROOT}/train/node.py",
    f"touch {ROOT}/train/unknown.py {USER_FILE}",
    f"echo '{{}}' > {ROOT}/env.json",
)
DRIFT = {*("torchmetrics", "accelerate", "oneccl-bind-pt", "mpich"), *("env.json", "train/node.py", "train/unknown.py")}
# Where no earlier test has left out node2, these name it.
OF_OTHER_NODES = {"ssh/config", "ssh/known_hosts"}


@pytest.fixture
def index(site: Site, tmp_path: Path) -> Iterator[str]:
    """Serve the newest of the largest wheelhouses as a package index to the nodes, and yield its URL.

    Like a public index, it has neither the bindings nor uv.
    """
    folders = [lock.parent for lock in CACHE.glob("current-cp311-*/lock.json")]  # smaller ones are for --no-stack
    wheelhouse = max(folders, key=lambda path: (len(list(path.iterdir())), (path / "lock.json").stat().st_mtime))
    folder = tmp_path / "served"
    folder.mkdir()
    for wheel in wheelhouse.glob("*.whl"):
        if not wheel.name.startswith(("oneccl_bind_pt-", "uv-")):
            (folder / wheel.name).symlink_to(wheel)
    command = [sys.executable, str(CHECKOUT / "test-cluster/index"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture
def site_of_installed_orch(site: Site, tmp_path: Path) -> Site:
    """Return the site with an orch that is installed from its wheel, outside the checkout."""
    packages = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(packages)]
    subprocess.run([*pip, *options, str(CHECKOUT)], check=True, cwd=tmp_path)
    program = (sys.executable, "-P", "-m", "orchestrator.cli.main")
    return replace(site, program=program, variables={"PYTHONPATH": str(packages)})


def command_lines_with_token(process: subprocess.Popen[str]) -> list[Path]:
    """Wait for a process, and return all command lines of /proc, also of nodes, that contained the secret meanwhile."""
    leaks = []
    while process.poll() is None:
        leaks += [
            path for path in (Path("/proc", name, "cmdline") for name in os.listdir("/proc")) if contains_token(path)
        ]
        time.sleep(0.01)  # shorter than the life of any program that gets arguments
    return leaks


def contains_token(path: Path) -> bool:
    try:
        return TOKEN.encode() in path.read_bytes()
    except OSError:
        return False


def test_provision_repairs_only_drift_and_adds_packages_of_the_user_until_they_are_not_required(
    site: Site, index: str, site_of_installed_orch: Site, tmp_path: Path
) -> None:
    """Repair node1 from an index. Remove the packages with an orch from its wheel, which has its own playbooks."""
    make_wheel(tmp_path, "orch_test_greeter", "1.0", requires=["orch-test-names>=2"], module="VERSION = '1.0'")
    make_wheel(tmp_path, "orch_test_names", "2.0", module="VERSION = '2.0'")
    needs = tmp_path / "needs.txt"
    needs.write_text(f"--no-index\n--find-links {tmp_path}\norch-test-greeter\n")
    run_on(site, "node1", "sh", "-ec", "; ".join(CHANGES))
    site.write_inventory("node0", "node1", stack_index_url=index, orch_requirements=str(needs))
    added = {"orch-test-greeter", "orch-test-names"}
    expected = {"node0": added, "node1": DRIFT | added}
    report = site.orch("--dry-run", "--wheels", "index", code=1)
    assert {node: names - OF_OTHER_NODES for node, names in drift(report).items()} == expected
    process = site.start("--json", "--wheels", "index")
    leaks = command_lines_with_token(process)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert drift(json.loads(out)) == drift(report), "--dry-run repairs nothing"
    assert run_on(site, "node1", "ls", USER_FILE, f"{SITE_PACKAGES}/accelerate/__init__.py")
    assert not leaks, "command lines contain the secret"
    greet = "import orch_test_greeter; print(orch_test_greeter.VERSION)"
    assert run_on(site, "node1", f"{STACK}/bin/python", "-c", greet) == "1.0\n"
    site.write_inventory("node0", "node1")
    done = site_of_installed_orch.run("provision", str(site.inventory), "--json", seconds=900)
    assert drift(json.loads(done.stdout)) == {"node0": added, "node1": added}
    assert "node1: removes orch-test-greeter 1.0, orch-test-names 2.0, which neither stack" in done.stderr
    script = tmp_path / "greet.py"
    script.write_text("import orch_test_greeter\n")
    run = (str(script), "--backend", "gloo", "--launcher", "torchrun", "--project", "none")
    refused = site.run("train", *run, "--inventory", str(site.inventory), seconds=60)
    assert "greet.py imports orch_test_greeter" in refused.stderr
