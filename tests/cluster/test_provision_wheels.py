"""Wheels by another way: from an index that the nodes reach; orch itself from its own wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.conftest import CHECKOUT
from tests.cluster.sites import ROOT, SITE, Site, drift, nodes_of, on

pytestmark = pytest.mark.cluster

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orch/wheelhouses"


@pytest.fixture
def index(site: Site, tmp_path: Path) -> Iterator[str]:
    """The newest wheelhouse as a package index on the bridge to the nodes; -> its URL.

    Without our bindings and uv, as other people's indexes are.
    """
    locks = CACHE.glob("current-cp311-*/lock.json")
    wheelhouse = max(locks, key=lambda path: path.stat().st_mtime).parent
    served = tmp_path / "served"
    served.mkdir()
    for wheel in wheelhouse.glob("*.whl"):
        if not wheel.name.startswith(("oneccl_bind_pt-", "uv-")):
            (served / wheel.name).symlink_to(wheel)
    command = [sys.executable, str(CHECKOUT / "cluster/index"), str(served)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_nodes_fetch_from_an_index(site: Site, index: str) -> None:
    removed = f"{SITE}/accelerate {SITE}/oneccl_bindings_for_pytorch {ROOT}/bin/uv"
    on(site, "node1", "sh", "-c", f"rm -r {removed}")
    site.describe("node0", "node1", stack_index_url=index)
    expected = {"accelerate", "oneccl-bind-pt"}
    assert drift(site.orch("--wheels", "index")) == {"node0": set(), "node1": expected}
    assert on(site, "node1", "ls", f"{SITE}/accelerate/__init__.py")
    assert site.orch("--check")["state"] == "done"


@pytest.fixture
def elsewhere(site: Site, tmp_path: Path) -> Site:
    """orch as `pip install` of its wheel makes it, in an empty environment, away from here."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = tmp_path / "venv/bin/python"
    for command in (
        [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(CHECKOUT)],
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")],
        [
            *pip,
            "--python",
            str(python),
            "install",
            "--quiet",
            "--no-compile",
            "--find-links",
            str(tmp_path),
            "orch-train==0.1.0",
        ],
    ):
        subprocess.run(command, check=True, env=clean, cwd=tmp_path)
    isolated = (str(python), "-P", str(python.with_name("orch")))
    return replace(site, program=isolated, variables={"PYTHONPATH": ""})


def test_orch_from_its_own_wheel_provisions_too(elsewhere: Site) -> None:
    elsewhere.describe("node0", "node1")
    on(elsewhere, "node1", "rm", f"{ROOT}/train/node.py")
    report = elsewhere.orch()
    assert drift(report) == {"node0": set(), "node1": {"train/node.py"}}
    assert [node["changed"] for node in nodes_of(report).values()] == [0, 1]
