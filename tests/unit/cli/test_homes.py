"""Where orch stores its state, with and without a writable home directory."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator import state
from orchestrator.errors import ExecuteError, RequestError
from orchestrator.operations.runs import find
from orchestrator.runs import store
from tests.support.recorded import make_run


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "ANSIBLE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_home_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state.state_home() == tmp_path / ".local/state/orch"
    assert state.cache_home() == tmp_path / ".cache/orch"
    assert (state.ansible_home(), state.uses_fallback_home()) == ({}, False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert state.cache_home() == Path("/elsewhere/orch")


@pytest.mark.parametrize("home", ["/proc/none", "/no/such/home"])
def test_one_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    folder = tmp_path / f"orch-home-{os.getuid()}"
    assert state.state_home() == folder / ".local/state/orch"
    assert state.ansible_home() == {"ANSIBLE_HOME": str(folder / ".ansible")}
    assert state.uses_fallback_home()
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert state.state_home() == Path("/elsewhere/orch")


def test_a_folder_that_others_can_read_is_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/none")
    folder = tmp_path / f"orch-home-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o755)  # The umask must not matter.
    with pytest.raises(ExecuteError, match="others may access"):
        state.state_home()


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes somebody else")
def test_a_user_without_a_name() -> None:
    unused_uid = max(user.pw_uid for user in pwd.getpwall()) + 4321
    program = (
        "import os; from orchestrator import errors, state; "
        f"os.setuid({unused_uid}); print(state.user_name(), state.user_home())"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert result.stdout == f"{unused_uid} None\n", result.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_CACHE_HOME"])
def test_a_folder_of_another_user_is_not_trusted(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    home = state.state_home if "STATE" in variable else state.cache_home
    assert home() == tmp_path / "orch"
    (tmp_path / "orch").mkdir()
    assert home() == tmp_path / "orch"
    os.chown(tmp_path / "orch", 12345, 12345)
    with pytest.raises(ExecuteError, match=r"belongs to another user \(12345\)"):
        home()
    (tmp_path / "orch").rename(tmp_path / "theirs")
    (tmp_path / "orch").symlink_to(tmp_path / "theirs")
    with pytest.raises(ExecuteError, match="belongs to another user"):
        home()


def test_what_is_kept_is_this_users_alone_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "orch/clusters").mkdir(parents=True)
    before = os.umask(0o022)
    try:
        lab_state = state.State.of(Path("lab"))
        state.write_private(lab_state.record("node0"), "{}")
        lab_state.log("provision").write_text("")
        with lab_state.lock("provision"):
            lab_state.owner("provision")
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "orch").rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_run_of_another_user_is_neither_reached_nor_carried_on(tmp_path: Path) -> None:
    """Reject its record, whose programs and ssh configuration would be used on this machine."""
    folder = make_run(tmp_path, ranks=1, nodes=1, seconds=2)
    (folder / "outcome.json").write_text('{"state": "failed"}')
    assert find(tmp_path, "last", None).folder == folder
    assert store.unfinished(tmp_path, "k") is not None
    os.chown(folder, 12345, 12345)
    with pytest.raises(RequestError, match="belongs to another user"):
        find(tmp_path, "last", None)
    assert store.unfinished(tmp_path, "k") is None
