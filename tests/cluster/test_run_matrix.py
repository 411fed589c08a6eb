"""The matrix of tests/matrix.py between two real nodes: every launcher, with ccl and gloo."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests import matrix
from tests.cluster.lab import ON_TWO
from tests.cluster.sites import ORCH, Site

pytestmark = pytest.mark.cluster
FLAVOURS = ["intel", "mpich", "openmpi"]


@pytest.fixture(scope="module")
def flavours(lab_session: Site) -> Site:
    """The lab with all flavours of MPI: the last module of the cluster, so they stay."""
    lab_session.describe("node0", "node1", "node2", orch_mpi=FLAVOURS)
    lab_session.orch()
    return lab_session


def test_a_second_provision_changes_nothing_and_finds_all_flavours(flavours: Site) -> None:
    again = flavours.orch()
    assert not any(node["changes"] for node in again["nodes"])


@pytest.mark.parametrize(("starter", "backend"), matrix.CELLS)
def test_on_two_nodes(flavours: Site, starter: str, backend: str) -> None:
    def start(script: str, *words: str) -> matrix.Cell:
        split = words.index("--")
        asked = (script, *words[:split], *ON_TWO, "--fresh", *words[split:])
        report = flavours.train(*asked, code=1)
        return matrix.Cell(code=1, report=report, logs=logs(flavours, report["run_id"]))

    planned = tuple(flavours.cluster.address(node) for node in ("node0", "node1"))
    matrix.check(start, starter, backend, planned=planned)


def logs(site: Site, run_id: str) -> dict[int, str]:
    done = subprocess.run(
        [*ORCH, "logs", run_id, "--json"], env=site.environment, cwd=site.folder,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found: dict[int, str] = {}
    for line in map(json.loads, done.stdout.splitlines()):
        found[line["rank"]] = found.get(line["rank"], "") + line["line"] + "\n"
    return found
