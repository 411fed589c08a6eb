"""Check that orch uses no file or folder that another user could have written first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from orch_node import trust
from orch_node.filled_folder import MARK, fill_once
from orch_node.trust import UntrustedError

from orchestrator.errors import RequestError
from orchestrator.targets.connections.local import Local
from orchestrator.targets.kubernetes.load import kube_settings
from orchestrator.targets.slurm.load import slurm_settings

STRANGER = 65534
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
        trust.check_folder(path)
    except UntrustedError:
        return False
    return True


@pytest.mark.parametrize(
    ("mode", "trusted"),
    [
        pytest.param(0o700, True, id="private"),
        pytest.param(0o755, True, id="readable"),
        pytest.param(0o777, False, id="writable-by-all"),
        pytest.param(0o1777, False, id="sticky-itself"),
        pytest.param(0o773, False, id="writable-unreadable"),
    ],
)
def test_folder_is_trusted_by_its_mode(tmp_path: Path, mode: int, trusted: bool) -> None:
    assert is_trusted(make_folder(tmp_path / "folder", mode=mode)) is trusted


def test_folder_below_a_sticky_folder_is_trusted_and_below_a_writable_one_is_not(tmp_path: Path) -> None:
    inner = make_folder(tmp_path / "scratch" / "me")
    make_folder(tmp_path / "scratch", mode=0o1777)
    assert is_trusted(inner)
    make_folder(tmp_path / "scratch", mode=0o777)
    assert not is_trusted(inner)


@needs_root
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_folder_is_not_trusted_if_a_stranger_owns_any_component(tmp_path: Path, depth: int) -> None:
    parts = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    make_folder(parts[-1])
    assert is_trusted(parts[-1])
    os.chown(parts[depth], STRANGER, STRANGER)
    with pytest.raises(UntrustedError, match="belongs to the user nobody"):
        trust.check_folder(parts[-1])


FOLDERS = st.tuples(
    st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=20),
    st.sampled_from([0, STRANGER]),  # the owner
    st.sampled_from([0o700, 0o755, 0o775, 0o777, 0o1777]),
)


@needs_root
@given(folders=st.lists(FOLDERS, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
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
    link.symlink_to("../" + tmp_path.name + "/disk")
    assert is_trusted(link / "me")
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert not is_trusted(link / "me")


def test_link_into_a_writable_folder_is_not_trusted(tmp_path: Path) -> None:
    make_folder(tmp_path / "open" / "me")
    make_folder(tmp_path / "open", mode=0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "me")
    assert not is_trusted(tmp_path / "link")


def test_link_cycle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        trust.check_folder(tmp_path / "a")


def test_parent_of_a_link_target_is_the_one_that_the_kernel_uses(tmp_path: Path) -> None:
    make_folder(tmp_path / "open" / "x")
    make_folder(tmp_path / "open", mode=0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "x")
    assert not is_trusted(Path(f"{tmp_path}/link/.."))


def test_missing_folders_are_created_for_this_user_alone(tmp_path: Path) -> None:
    trust.check_folder(tmp_path / "a" / "b", make=True)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileNotFoundError):
        trust.check_folder(tmp_path / "none")


def test_lock_file_is_not_opened_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(UntrustedError, match="symbolic link"):
        trust.open_private(tmp_path / "lock")
    assert not target.exists()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UntrustedError, match="plain file"):
        trust.open_private(tmp_path / "pipe")


# Folders that orch fills once.


def write_good(part: Path) -> None:
    """Fill a folder as orch does."""
    (part / "program").write_text("good")


def test_folder_is_filled_once_per_content(tmp_path: Path) -> None:
    folder = tmp_path / "stacks" / "current"
    assert fill_once(folder, "1", write_good)
    assert not fill_once(folder, "1", write_good)
    assert fill_once(folder, "2", write_good)
    assert (folder / MARK).read_text() == "2"
    assert sorted(path.name for path in folder.parent.iterdir()) == [".current.lock", "current"]


def test_folder_without_a_mark_is_filled_again(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "current")
    (folder / "program").write_text("half")
    (folder / "other").touch()
    assert fill_once(folder, "1", write_good)
    assert (folder / "program").read_text() == "good"
    assert not (folder / "other").exists()


def plant_folder(folder: Path) -> None:
    """Create the folder with its mark, as another user."""
    make_folder(folder, owner=STRANGER)
    (folder / MARK).write_text("1")
    (folder / "program").write_text("evil")


def plant_parent(folder: Path) -> None:
    """Create the folder above as another user."""
    make_folder(folder.parent, owner=STRANGER)
    plant_folder(folder)


def plant_link(folder: Path) -> None:
    """Create a link in place of the folder, as another user."""
    plant_folder(folder.with_name("evil"))
    folder.symlink_to(folder.with_name("evil"))
    os.chown(folder, STRANGER, STRANGER, follow_symlinks=False)


def plant_dangling_link(folder: Path) -> None:
    """Create a link to nothing in place of the folder, as another user."""
    folder.symlink_to("/nonexistent")
    os.chown(folder, STRANGER, STRANGER, follow_symlinks=False)


def plant_lock(folder: Path) -> None:
    """Create the lock file as another user."""
    lock = folder.with_name(f".{folder.name}.lock")
    lock.touch()
    os.chown(lock, STRANGER, STRANGER)


def plant_mark(folder: Path) -> None:
    """Create the mark in a folder of this user, as another user."""
    make_folder(folder)
    (folder / MARK).write_text("1")
    os.chown(folder / MARK, STRANGER, STRANGER)


@needs_root
@pytest.mark.parametrize(
    "plant",
    [plant_folder, plant_parent, plant_link, plant_dangling_link, plant_lock, plant_mark],
    ids=lambda plant: plant.__name__,
)
def test_folder_that_a_stranger_created_first_is_refused(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    folder = tmp_path / "stacks" / "current"
    make_folder(folder.parent)
    plant(folder)
    with pytest.raises(UntrustedError):
        fill_once(folder, "1", write_good)


@needs_root
def test_login_node_uses_no_programs_that_a_stranger_put_there(tmp_path: Path) -> None:
    from orch_node.protocol.record import RunNode

    from orchestrator.files import pack_folder
    from orchestrator.paths import TRAIN
    from orchestrator.planning.plan import SendFolder

    folder = tmp_path / "runs" / ".orch" / "train-1"
    make_folder(folder, owner=STRANGER)
    step = SendFolder(node=RunNode(node="login"), source=str(TRAIN), path=str(folder))
    with pytest.raises(Exception, match="belongs to the user nobody"):
        Local().feed(step.unpack(), pack_folder(TRAIN))
    assert not (folder / "node.py").exists()


# Files of the current folder.

READERS = {
    "orch-slurm.toml": lambda path: slurm_settings(path, (), {}),
    "orch-k8s.toml": lambda path: kube_settings(path, []),
}


@needs_root
@pytest.mark.parametrize("name", READERS)
def test_settings_of_a_stranger_in_the_current_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    read, file = READERS[name], tmp_path / name
    read(None)
    file.write_text('python = "/usr/bin/python3"\n')
    assert read(None).python == "/usr/bin/python3"
    os.chown(file, STRANGER, STRANGER)
    with pytest.raises(RequestError, match="belongs to the user nobody"):
        read(None)
    assert read(file).python == "/usr/bin/python3", "the user has named it"
    os.chown(file, 0, 0)
    file.rename(tmp_path / "target")
    file.symlink_to("target")
    assert read(None).python == "/usr/bin/python3"
    os.chown(file, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(RequestError, match="belongs to the user nobody"):
        read(None)


@pytest.mark.parametrize("name", READERS)
def test_settings_that_others_can_write_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("")
    (tmp_path / name).chmod(0o666)
    with pytest.raises(RequestError, match="other users can write it"):
        READERS[name](None)
