"""Check the copy of a run's files on a login node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError
from orchestrator.targets.batch.run_folder import JobMirror
from tests.support.files import write_files
from tests.support.slurm_plans import make_plan
from tests.unit.targets.connections.test_mirror import Folder


def test_copy_of_a_requeued_job_has_no_outcome(tmp_path: Path) -> None:
    names = ("events.jsonl", "outcome.json", "supervisor.json")
    remote_folder, copy = write_files(tmp_path / "remote", dict.fromkeys(names, "{}\n")), tmp_path / "copy"
    copy.mkdir()
    record = replace(make_plan().run, run_dir=str(remote_folder), layout=())
    for _ in range(2):
        JobMirror(Folder(remote_folder, []), record, copy).refresh()  # type: ignore[arg-type]
        assert {path.name for path in copy.iterdir()} == {path.name for path in remote_folder.iterdir()}
        (remote_folder / "outcome.json").unlink(missing_ok=True)
        (remote_folder / "supervisor.json").unlink(missing_ok=True)
        (remote_folder / "events.jsonl").write_text("{}\n{}\n")
    assert (copy / "events.jsonl").read_text() == "{}\n{}\n"
    (remote_folder / "outcome.json").write_text("{}\n")
    (copy / "outcome.json").mkdir()
    with pytest.raises(ExecuteError, match="cannot be written"):
        JobMirror(Folder(remote_folder, []), record, copy).refresh()  # type: ignore[arg-type]
