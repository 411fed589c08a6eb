"""Write files whole or not at all, and the folders of state with and without a writable home directory."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator import files
from orchestrator.errors import ExecuteError, RequestError
from orchestrator.files import PUBLIC, write_whole
from orchestrator.operations.runs import find
from orchestrator.runs import store
from tests.support.recorded import make_run

OTHER_USER = 12345
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "ANSIBLE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_state_is_stored_in_a_writable_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # which the specification says to ignore
    assert files.state_home() == tmp_path / ".local/state/orch"
    assert files.cache_home() == tmp_path / ".cache/orch"
    assert files.ansible_home() == {}
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert files.cache_home() == Path("/elsewhere/orch")


def test_state_is_stored_in_a_temporary_folder_without_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files.note_fallback.cache_clear()
    caplog.set_level("INFO")
    monkeypatch.setenv("HOME", "/proc/none")
    folder = tmp_path / f"orch-home-{os.getuid()}"
    assert files.state_home() == folder / ".local/state/orch"
    assert files.ansible_home() == {"ANSIBLE_HOME": str(folder / ".ansible")}
    assert caplog.messages == [f"note: the home directory is not writable; using {folder}"]
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert files.state_home() == Path("/elsewhere/orch")
    folder.chmod(0o755)
    monkeypatch.delenv("XDG_STATE_HOME")
    with pytest.raises(ExecuteError, match="others may access"):
        files.state_home()


@needs_root
def test_user_without_a_name_is_named_by_its_id() -> None:
    unused_uid = max(user.pw_uid for user in pwd.getpwall()) + 4321
    program = (
        "import os; from orchestrator import errors, files; "
        f"os.setuid({unused_uid}); print(files.permissions.user_name(os.getuid()), files.folder_in_home('x'))"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert result.stdout == f"{unused_uid} None\n", result.stderr


@needs_root
def test_folder_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "orch"
    (folder / "target").mkdir(parents=True)
    os.chown(folder / "target", OTHER_USER, OTHER_USER)
    (folder / "orch").symlink_to(folder / "target")
    for variable, home in (("XDG_STATE_HOME", files.state_home), ("XDG_CACHE_HOME", files.cache_home)):
        monkeypatch.setenv(variable, str(tmp_path))
        assert home() == folder
        os.chown(folder, OTHER_USER, OTHER_USER)
        with pytest.raises(ExecuteError, match=r"belongs to another user \(12345\)"):
            home()
        os.chown(folder, os.getuid(), os.getgid())
        monkeypatch.setenv(variable, str(folder))
        with pytest.raises(ExecuteError, match="belongs to another user"):
            home()


def test_files_are_private_with_any_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "orch/clusters").mkdir(parents=True)
    previous_umask = os.umask(0o022)
    try:
        lab_state = files.State.of(Path("lab"))
        files.write_private(lab_state.record("node0"), "{}")
        lab_state.log("provision").write_text("")
        with lab_state.lock("provision"):
            lab_state.owner("provision")
        write_whole(tmp_path / "orch/private", "text")
        write_whole(tmp_path / "public", "text", mode=PUBLIC)
    finally:
        os.umask(previous_umask)
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "orch").rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert (tmp_path / "public").stat().st_mode & 0o777 == 0o644


@needs_root
def test_run_of_another_user_is_neither_opened_nor_resumed(tmp_path: Path) -> None:
    """Reject its record, whose programs and ssh configuration would be used on this machine."""
    folder = make_run(tmp_path, ranks=1, nodes=1, seconds=2)
    (folder / "outcome.json").write_text('{"state": "failed"}')
    assert find(tmp_path, "last", None).folder == folder
    assert store.can_resume(store.load(folder))
    os.chown(folder, OTHER_USER, OTHER_USER)
    with pytest.raises(RequestError, match="belongs to another user"):
        find(tmp_path, "last", None)
    assert not store.can_resume(store.load(folder))


def test_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new\ud800")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "new")
    assert (path.read_text(), sorted(os.listdir(tmp_path))) == ("old", ["file", "folder"])
