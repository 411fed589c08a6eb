"""Check that orch uses no file or folder that another user could have written first."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from orch_node import permissions
from orch_node.content_store import MARK, fill_once
from orch_node.permissions import UntrustedError
from orch_node.protocol.record import RunNode

from orchestrator.errors import RequestError
from orchestrator.files import TRAIN, source_files
from orchestrator.planning.plan import SendFolder
from orchestrator.targets.connections.local import Local
from orchestrator.targets.execute import packed
from orchestrator.targets.kubernetes.inputs import kubernetes_settings
from tests.support.files import write_files
from tests.support.slurm_plans import slurm_settings

OTHER_USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="creates files of another user")


def make_folder(path: Path, *, mode: int = 0o755, owner: int | None = None) -> Path:
    """Create a folder with this mode and owner."""
    path.mkdir(parents=True, exist_ok=True)
    if owner is not None:
        os.chown(path, owner, owner)
    path.chmod(mode)
    return path


def is_trusted(path: Path) -> bool:
    """Return whether the check accepts the folder."""
    try:
        permissions.check_folder(path)
    except UntrustedError:
        return False
    return True


FOLDERS = st.tuples(
    st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=20),
    st.sampled_from([0, OTHER_USER]),  # the owner
    st.sampled_from([0o700, 0o755, 0o775, 0o777, 0o1777]),
)


@needs_root
@example(folders=[("scratch", 0, 0o1777), ("me", 0, 0o755)])
@example(folders=[("scratch", 0, 0o777), ("me", 0, 0o755)])
@example(folders=[("of another user", OTHER_USER, 0o755), ("me", 0, 0o755)])
@given(folders=st.lists(FOLDERS, min_size=1, max_size=4))
def test_path_is_trusted_only_if_each_folder_is(folders: list[tuple[str, int, int]]) -> None:
    assume(not any(name in (".", "..") for name, _, _ in folders))
    with tempfile.TemporaryDirectory() as base:
        path = Path(base)
        for name, owner, mode in folders:
            path = make_folder(path / name, mode=mode, owner=owner)
        *passed, (_, _, last_mode) = folders
        expected = all(owner == 0 for _, owner, _ in folders)
        # The group of these folders is their owner's private group, so 0o775 is as good as 0o755.
        expected = expected and not last_mode & 0o002 and all(mode != 0o777 for _, _, mode in passed)
        assert is_trusted(path) is expected


@needs_root
def test_symbolic_links_are_followed_if_their_owner_is_trusted(tmp_path: Path) -> None:
    make_folder(tmp_path / "disk" / "me")
    link = tmp_path / "home"
    link.symlink_to(f"../{tmp_path.name}/disk")
    assert is_trusted(link / "me")
    os.chown(link, OTHER_USER, OTHER_USER, follow_symlinks=False)
    assert not is_trusted(link / "me")


def test_link_into_a_writable_folder_is_not_trusted(tmp_path: Path) -> None:
    make_folder(tmp_path / "open" / "me")
    make_folder(tmp_path / "open", mode=0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "me")
    assert not is_trusted(tmp_path / "link")
    assert not is_trusted(Path(f"{tmp_path}/link/..")), "the kernel uses the parent of the target"


def test_missing_folders_are_created_for_this_user_alone(tmp_path: Path) -> None:
    permissions.check_folder(tmp_path / "a" / "b", make=True)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileNotFoundError):
        permissions.check_folder(tmp_path / "none")


def test_lock_file_is_not_opened_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(UntrustedError, match="symbolic link"):
        permissions.open_private(tmp_path / "lock")
    assert not target.exists()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UntrustedError, match="plain file"):
        permissions.open_private(tmp_path / "pipe")


# Folders that orch fills once.


def fill(folder: Path) -> None:
    """Fill a folder as orch does."""
    (folder / "program").write_text("good")


def test_folder_is_filled_once_per_content(tmp_path: Path) -> None:
    folder = tmp_path / "stacks" / "current"
    assert fill_once(folder, "1", fill)
    assert not fill_once(folder, "1", fill)
    assert fill_once(folder, "2", fill)
    assert (folder / MARK).read_text() == "2"
    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(lambda _: fill_once(folder, "3", fill), range(8))) == [False] * 7 + [True]
    assert sorted(path.name for path in folder.parent.iterdir()) == [".current.lock", "current"]


def test_folder_without_a_mark_is_filled_again(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "current", {"program": "half", "other": ""})
    part = folder.with_name(".current.part-x")  # of a process that was killed
    part.mkdir()
    assert fill_once(folder, "1", fill)
    assert not part.exists()
    assert (folder / "program").read_text() == "good"
    assert not (folder / "other").exists()


@needs_root
def test_folder_that_another_user_created_first_is_refused(tmp_path: Path) -> None:
    for name in ("folder", "parent", "link", "lock", "mark"):
        folder = make_folder(tmp_path / name) / "current"
        evil = folder.with_name("evil") if name == "link" else make_folder(folder)
        (folder.parent / ".current.lock").touch()
        if name == "link":
            folder.symlink_to(make_folder(evil))
        (folder / MARK).write_text("1")
        planted = {"parent": folder.parent, "lock": folder.parent / ".current.lock", "mark": folder / MARK}
        os.chown(planted.get(name, folder), OTHER_USER, OTHER_USER, follow_symlinks=False)
        with pytest.raises(UntrustedError):
            fill_once(folder, "1", fill)


@needs_root
def test_login_node_uses_no_programs_of_another_user(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / ".orch" / "train-1"
    make_folder(folder, owner=OTHER_USER)
    step = SendFolder(nodes=(RunNode(node="login"),), source=str(TRAIN), path=str(folder))
    with packed(TRAIN, source_files(TRAIN)) as archive:
        result = Local().capture(step.unpack(), seconds=60, source=archive)
        assert result.code != 0
        assert "belongs to the user nobody" in result.err
    assert not (folder / "node.py").exists()


# Files of the current folder.

READERS = {
    "orch-slurm.toml": lambda path: slurm_settings(path, (), {}),
    "orch-k8s.toml": lambda path: kubernetes_settings(path, []),
}


@needs_root
@pytest.mark.parametrize("name", READERS, ids=str)
def test_settings_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    read, file = READERS[name], tmp_path / name
    read(None)
    file.write_text('python = "/usr/bin/python3"\n')
    assert read(None).python == "/usr/bin/python3"
    os.chown(file, OTHER_USER, OTHER_USER)
    with pytest.raises(RequestError, match="belongs to the user nobody"):
        read(None)
    assert read(file).python == "/usr/bin/python3", "the user names the file"
    os.chown(file, 0, 0)
    file.rename(tmp_path / "target")
    file.symlink_to("target")
    assert read(None).python == "/usr/bin/python3"
    os.chown(file, OTHER_USER, OTHER_USER, follow_symlinks=False)
    with pytest.raises(RequestError, match="belongs to the user nobody"):
        read(None)


@pytest.mark.parametrize("name", READERS, ids=str)
def test_settings_that_others_can_write_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("")
    (tmp_path / name).chmod(0o666)
    with pytest.raises(RequestError, match="other users can write it"):
        READERS[name](None)
