"""Every launcher with every backend: on this machine, and on two hosts in namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hosts, matrix
from tests.conftest import mpi_here, orch_environment

README = Path(__file__).parents[2] / "README.md"
ORCH = (sys.executable, "-m", "orchestrator.cli.main")


class Ground:
    """Where cells are run: this machine, or two hosts of an inventory."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.flags = flags

    def start(self, *words: str) -> matrix.Cell:
        script = words.index("--")
        asked = (*words[:script], *self.flags, "--fresh", "--json", *words[script:])
        done = self.orch("train", *asked)
        assert done.stdout.startswith("{"), done.stderr
        report = json.loads(done.stdout)
        lines = self.orch("logs", report["run_id"], "--json").stdout.splitlines()
        logs: dict[int, str] = {}
        for line in map(json.loads, lines):
            logs[line["rank"]] = logs.get(line["rank"], "") + line["line"] + "\n"
        return matrix.Cell(code=done.returncode, report=report, logs=logs)

    def orch(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = orch_environment(self.folder)
        return subprocess.run(
            [*ORCH, *words], cwd=self.folder, env=environment, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip


@pytest.fixture(scope="session")
def one(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("one"), "--ppn", "2")


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    if why := hosts.possible():
        if "CI" in os.environ:
            pytest.fail(why)
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("two")
    lab = hosts.Hosts(folder / "hosts")
    inventory = lab.inventory(orch_environment(folder))
    yield Ground(folder, "--ppn", "1", "--inventory", str(inventory))
    lab.end()


def needs(starter: str) -> None:
    words = matrix.STARTERS[starter]
    mpi_here(words[words.index("--mpi") + 1] if "--mpi" in words else "intel")


@pytest.mark.parametrize(("starter", "backend"), matrix.CELLS)
def test_on_one_node(one: Ground, starter: str, backend: str) -> None:
    needs(starter)
    matrix.check(one.start, starter, backend, nodes=1)


@pytest.mark.parametrize(("starter", "backend"), matrix.CELLS)
def test_on_two_nodes(two: Ground, starter: str, backend: str) -> None:
    needs(starter)
    matrix.check(two.start, starter, backend, nodes=2)


def test_the_table_of_the_readme_is_current() -> None:
    text = README.read_text()
    assert matrix.with_table(text) == text, "python -m tests.matrix README.md"
