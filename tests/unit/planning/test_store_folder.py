"""Put a folder into the store of nodes, and copy it from there for a run."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node import content_store

from orchestrator.errors import ExecuteError
from orchestrator.model.printable import CommandResult
from orchestrator.planning.plan import StoreFolder
from orchestrator.targets.connections.local import Local
from orchestrator.targets.execute import packed, store
from tests.support.disks import small_file_system
from tests.support.files import write_files
from tests.support.plans import make_store_step


@pytest.fixture
def step(tmp_path: Path) -> StoreFolder:
    """Return the step for a folder with plain files, a program, a link and names that need care."""
    names = [*(f"folder{index % 5}/file{index}" for index in range(50)), "-x", "a b\\t'$(x)", "run.sh"]
    source = write_files(tmp_path / "source", {name: name for name in names})
    (source / "run.sh").chmod(0o755)
    (source / "folder0" / "link").symlink_to("../run.sh")
    return make_store_step(source, [*names, "folder0/link"], tmp_path / "store", tmp_path / "run")


class CountingLocal(Local):
    """A connection that counts how often a folder is sent."""

    sent = 0

    def capture(self, argv: tuple[str, ...], *, seconds: float, source: Path | None = None) -> CommandResult:
        self.sent += source is not None
        return super().capture(argv, seconds=seconds, source=source)


def modes(folder: str) -> dict[str, int]:
    paths = [path for path in Path(folder).rglob("*") if not path.is_symlink()]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in paths}


def test_a_folder_is_sent_once_and_each_run_gets_a_writable_copy(step: StoreFolder) -> None:
    node = CountingLocal()
    second = replace(step, run_dir=f"{step.run_dir}2", copy=f"{step.run_dir}2/project")
    for run in (step, second):
        store(run, {"node0": node})
        assert content_store.hash_of(Path(run.copy)) == Path(step.path).name
        (Path(run.copy) / "run.sh").write_text("changed")
    assert node.sent == 1
    assert content_store.hash_of(Path(step.path)) == Path(step.path).name
    assert set(modes(step.path).values()) == {0o400, 0o500}
    assert set(modes(step.copy).values()) == {0o600, 0o700}
    assert os.readlink(f"{step.copy}/folder0/link") == "../run.sh"


def test_nodes_that_share_a_store_receive_a_folder_at_the_same_time(step: StoreFolder, tmp_path: Path) -> None:
    source = Path(step.source)
    with packed(source, [source / name for name in step.files]) as archive, ThreadPoolExecutor(8) as pool:

        def receive(_: int) -> tuple[int, bytes]:
            with archive.open("rb") as file:
                result = subprocess.run(step.command("receive"), stdin=file, capture_output=True)
            return result.returncode, result.stderr

        assert set(pool.map(receive, range(8))) == {(0, b"")}
    digest = Path(step.path).name
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [f".{digest}.lock", digest]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["project", "project.txt"]
    assert (tmp_path / "run/project.txt").read_text() == step.path


def test_other_content_does_not_get_the_name(step: StoreFolder, tmp_path: Path) -> None:
    (Path(step.source) / "run.sh").chmod(0o644)
    with pytest.raises(ExecuteError, match="its files have changed since the run was planned"):
        store(step, {"node0": Local()})
    (tmp_path / "broken").write_text("no archive")
    result = Local().capture(step.command("receive"), seconds=60, source=tmp_path / "broken")
    assert result.code != 0
    assert "not in gzip format" in result.err
    assert list((tmp_path / "store").iterdir()) == [], "nothing incomplete is left"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change the owner of files")
def test_a_store_that_another_user_can_write_is_refused(step: StoreFolder) -> None:
    folder = Path(step.path)
    folder.mkdir(parents=True)
    (folder / content_store.MARK).write_text(folder.name)
    os.chown(folder, 65534, 65534)
    with pytest.raises(ExecuteError, match="belongs to the user nobody"):
        store(step, {"node0": Local()})
    content_store.remove(folder)
    folder.parent.parent.chmod(0o777)  # as in a project's folder of a group: the programs next to it are not safer
    store(step, {"node0": Local()})
    folder.parent.chmod(0o777)
    with pytest.raises(ExecuteError, match="other users can write it"):
        store(step, {"node0": Local()})


def test_a_full_disk_is_reported_and_leaves_nothing_incomplete(step: StoreFolder, tmp_path: Path) -> None:
    source = Path(step.source)
    (source / "data.bin").write_bytes(os.urandom(3_000_000))
    for size, folder in (("1m", "store"), ("5m", "run/project")):  # full when it is received, and when it is copied
        disk = tmp_path / size
        path, copy = disk / "store" / content_store.hash_of(source), disk / "run" / "project"
        small = replace(step, files=(), path=str(path), run_dir=str(disk / "run"), copy=str(copy))
        receive = f"tar -C '{source}' -cz . | {shlex.join(small.command('receive'))}"
        with small_file_system(disk, size):
            result = subprocess.run(["sh", "-c", receive], capture_output=True, text=True)
            names = [path.name for path in disk.glob("*/*")]
        assert f"{disk}/{folder}" in result.stderr
        assert "is full (No space left on device)" in result.stderr
        assert not [name for name in names if ".part-" in name or "project" in name]
