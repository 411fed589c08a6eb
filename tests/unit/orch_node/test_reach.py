"""The folder of shared connections is removed, also after its supervisor was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from orch_node import reach

from orchestrator.files import LIB


def test_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(reach.SOCKETS, raising=False)
    program = (
        "import os; from orch_node import reach; reach.share_connections(); "
        "print(os.environ[reach.SOCKETS], flush=True); input()"
    )
    environment = {**os.environ, "PYTHONPATH": str(LIB)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        (folder / "socket").touch()
        os.utime(folder, (0, 0))
        reach.remove_unused(folder)
        assert folder.is_dir()
        process.kill()
    os.utime(folder, (0, 0))
    reach.share_connections()
    assert not folder.exists()
    own_folder = Path(os.environ[reach.SOCKETS])
    assert own_folder.is_dir()
    reach.end_sharing()
    assert not own_folder.exists()
