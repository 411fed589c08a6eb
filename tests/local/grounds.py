"""Where `orch train` is run in tests that compare launchers: this machine, or two hosts on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import hosts, matrix
from tests.conftest import orch_environment, orch_in

ORCH = (sys.executable, "-m", "orchestrator.cli.main")


class Ground:
    """A folder, a controller that has seen nothing else, and the flags that choose the nodes."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.flags = flags
        self.lab: hosts.Hosts | None = None

    def start(self, script: str, *words: str) -> matrix.Cell:
        split = words.index("--") if "--" in words else len(words)
        asked = (script, *words[:split], *self.flags, "--fresh", "--json", *words[split:])
        done = self.orch("train", *asked)
        assert done.stdout.startswith("{"), done.stderr
        return matrix.Cell.of(done.returncode, json.loads(done.stdout))

    def orch(self, *words: str) -> subprocess.CompletedProcess[str]:
        return orch_in(self.folder, *words, timeout=180)


@pytest.fixture(scope="session")
def one(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("one"), "--ppn", "2")


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with two_hosts(tmp_path_factory.mktemp("two"), "--ppn", "1") as ground:
        yield ground


@contextmanager
def two_hosts(folder: Path, *flags: str) -> Iterator[Ground]:
    if why := hosts.possible():
        if "CI" in os.environ:
            pytest.fail(why)
        pytest.skip(why)
    lab = hosts.Hosts(folder / "hosts")
    try:
        inventory = lab.inventory(orch_environment(folder))
        ground = Ground(folder, *flags, "--inventory", str(inventory))
        ground.lab = lab
        yield ground
    finally:
        lab.end()
