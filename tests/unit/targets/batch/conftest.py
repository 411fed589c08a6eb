"""The folder of a run that is a job of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node.protocol.batch import CONFIG

from tests.support.recorded import make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run that is job 12 and has not ended."""
    run_folder = make_run(tmp_path, target="slurm", location={"name": "orch-x", "job": "12"}, ended=False)
    (run_folder / "supervisor.json").write_text('{"pid": 7, "started": 1.0}')
    (run_folder / CONFIG).write_text("{}")
    return run_folder
