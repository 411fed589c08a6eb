"""Unpack a project on nodes that share a folder."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orch_node.protocol.record import RunNode

from orchestrator.files import pack_files
from orchestrator.planning.plan import SendProject


def test_nodes_that_share_a_folder_unpack_a_project_at_the_same_time(tmp_path: Path) -> None:
    source = tmp_path / "source"
    names = [f"folder{index % 5}/file{index}" for index in range(50)]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    run_dir = tmp_path / "run"
    step = SendProject(
        nodes=(RunNode(node="a"),), source=str(source), files=tuple(names), path=str(run_dir / "project")
    )
    archive = pack_files(source, names)

    def unpack(_: int) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(step.unpack(), input=archive, capture_output=True)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(unpack, range(16)))
    assert {(result.returncode, result.stderr) for result in results} == {(0, b"")}
    assert [path.name for path in run_dir.iterdir()] == ["project"]
    assert sum(path.is_file() for path in (run_dir / "project").rglob("*")) == len(names)
    broken = subprocess.run((*step.unpack()[:-1], str(run_dir / "other")), input=b"no archive", capture_output=True)
    assert broken.returncode != 0
    assert [path.name for path in run_dir.iterdir()] == ["project"], "nothing incomplete is left"
