"""The supervisor's bookkeeping; tests/local and tests/cluster run it for real."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import socket
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.share import TRAIN


@pytest.fixture(scope="module")
def supervise() -> ModuleType:
    spec = importlib.util.spec_from_file_location("supervise", TRAIN / "supervise.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def started(host: str, pid: int) -> bytes:
    event = {"event": "started", "rank": 1, "node": "n", "pid": pid, "wrapper": pid, "host": host}
    return json.dumps(event).encode() + b"\n"


@pytest.mark.parametrize(("host", "known"), [(socket.gethostname(), True), ("elsewhere", False)])
def test_processes_of_other_nodes_are_never_signalled(
    supervise: ModuleType, tmp_path: Path, host: str, known: bool
) -> None:
    """A rank of another node may have the number of the supervisor itself."""
    supervisor = supervise.Supervisor(tmp_path, 2)
    supervisor.take(started(host, os.getpid()), io.BytesIO(), io.BytesIO())
    assert (os.getpid() in supervisor.pids.values()) is known
    assert (os.getpid() in supervisor.wrappers.values()) is known


def test_words_of_the_launcher_are_no_events(supervise: ModuleType) -> None:
    assert supervise.parse_event(b"[mpiexec@host] some words\n") is None
    assert supervise.parse_event(b'{"a": 1}\n') is None
    assert supervise.parse_event(b'{"event": "exit", "rank": 0}\n') == {"event": "exit", "rank": 0}
