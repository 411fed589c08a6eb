"""Check the copy of a run's files on a login node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.targets.batch.run_folder import JobMirror
from tests.support.slurm_plans import make_plan


class Files:
    """The run folder on a login node, as a mapping of file names to contents."""

    def __init__(self, contents: dict[str, str]) -> None:
        self.contents = contents

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes | None:
        text = self.contents.get(path.rpartition("/")[2])
        return None if text is None else text.encode()[offset:]

    def size(self, path: str) -> int:
        return len(self.read(path) or b"")


def test_copy_of_a_requeued_job_has_no_outcome(tmp_path: Path) -> None:
    record = replace(make_plan().run, run_dir="/shared/runs/x", layout=())
    run_folder = Files({"events.jsonl": "{}\n", "outcome.json": "{}", "supervisor.json": "{}"})
    for _ in range(2):
        mirror = JobMirror(run_folder, record, tmp_path)  # type: ignore[arg-type]
        mirror.refresh()
        assert {path.name for path in tmp_path.iterdir()} == set(run_folder.contents)
        run_folder.contents = {"events.jsonl": "{}\n{}\n"}
    assert (tmp_path / "events.jsonl").read_text() == run_folder.contents["events.jsonl"]
