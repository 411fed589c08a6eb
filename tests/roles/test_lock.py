from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.roles.modules import load_module

lock = load_module("orch_lock")
HOUR = 3600
THIS_CONTROLLER = {"token": "a", "user": "me", "host": "laptop", "pid": "1", "what": "provision"}
OTHER_CONTROLLER = {**THIS_CONTROLLER, "token": "b", "user": "you", "what": "sync"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "orch" / lock.NAME)


def holder(path: str) -> str:
    return str(json.loads(Path(path).read_text())["token"])


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the node's boot id and uptime, which a test can change."""
    clock: dict[str, Any] = {"boot": "first", "now": 10_000.0, "machine": ["a", "1"]}
    monkeypatch.setattr(lock, "since_boot", lambda: (clock["boot"], clock["now"]))
    monkeypatch.setattr(lock, "this_machine", lambda: clock["machine"])
    return clock


def test_lock_is_taken_and_released(path: str) -> None:
    assert lock.acquire(path, THIS_CONTROLLER, HOUR) == ""
    assert holder(path) == "a"
    assert os.stat(path).st_mode & 0o777 == 0o644
    lock.release(path, THIS_CONTROLLER)
    assert not os.path.exists(path)
    lock.release(path, THIS_CONTROLLER)


def test_error_names_the_holder(path: str) -> None:
    lock.acquire(path, OTHER_CONTROLLER, HOUR)
    with pytest.raises(lock.HeldError) as error:
        lock.acquire(path, THIS_CONTROLLER, HOUR)
    assert str(error.value).startswith("you@laptop (process 1) has been syncing this node since 20")
    assert str(error.value).endswith(f"if it has ended, remove {path}")
    lock.release(path, THIS_CONTROLLER)
    assert holder(path) == "b"


def test_same_controller_continues_at_once(path: str, kernel: dict[str, Any]) -> None:
    lock.acquire(path, THIS_CONTROLLER, HOUR)
    kernel["now"] += HOUR + 60
    assert lock.acquire(path, {**THIS_CONTROLLER, "pid": "2"}, HOUR) == ""
    with pytest.raises(lock.HeldError, match="process 2"):
        lock.acquire(path, OTHER_CONTROLLER, HOUR)


def test_lock_without_renewal_is_taken_over(path: str, kernel: dict[str, Any]) -> None:
    lock.acquire(path, OTHER_CONTROLLER, HOUR)
    kernel["now"] += HOUR + 60
    assert "took over a lock that was renewed 61 minutes ago: you@laptop" in lock.acquire(path, THIS_CONTROLLER, HOUR)
    lock.release(path, OTHER_CONTROLLER)
    assert holder(path) == "a"


def test_renewed_lock_is_kept(path: str, kernel: dict[str, Any]) -> None:
    """Neither the duration nor changes of the clock matter."""
    lock.acquire(path, OTHER_CONTROLLER, HOUR)
    began = json.loads(Path(path).read_text())["started"]
    for _ in range(12):
        kernel["now"] += 600
        lock.renew(path, OTHER_CONTROLLER)
    os.utime(path, (0, 0))  # written with a wrong clock
    with pytest.raises(lock.HeldError, match=f"since {began}"):
        lock.acquire(path, THIS_CONTROLLER, HOUR)
    kernel["now"] += HOUR + 60
    assert "took over a lock that was renewed 61 minutes ago" in lock.acquire(path, THIS_CONTROLLER, HOUR)
    with pytest.raises(lock.HeldError, match="another controller has taken over this node: me@laptop"):
        lock.renew(path, OTHER_CONTROLLER)
    assert holder(path) == "a"


def test_reboot_does_not_release_the_lock_at_once(path: str, kernel: dict[str, Any]) -> None:
    lock.acquire(path, OTHER_CONTROLLER, HOUR)
    kernel.update(boot="second", now=60.0)
    with pytest.raises(lock.HeldError):
        lock.acquire(path, THIS_CONTROLLER, HOUR)
    kernel["now"] = HOUR + 60.0
    assert "took over" in lock.acquire(path, THIS_CONTROLLER, HOUR)


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(["b", "2"], id="another-login-node"),
        pytest.param(["b", "1"], id="same-disk-image"),
        pytest.param(["a", ""], id="container"),
    ],
)
def test_lock_of_another_machine_is_not_taken_over_at_once(
    path: str, kernel: dict[str, Any], machine: list[str]
) -> None:
    lock.acquire(path, OTHER_CONTROLLER, HOUR)
    kernel.update(boot="other", now=1e6, machine=machine)
    with pytest.raises(lock.HeldError):
        lock.acquire(path, THIS_CONTROLLER, HOUR)
    renewed = os.stat(path).st_mtime - HOUR - 60
    os.utime(path, (renewed, renewed))
    assert "took over a lock that was renewed 61 minutes ago" in lock.acquire(path, THIS_CONTROLLER, HOUR)


def test_lock_is_not_followed_through_a_link(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    os.symlink("/nonexistent", path)
    with pytest.raises(OSError, match="symbolic links"):
        lock.acquire(path, THIS_CONTROLLER, HOUR)


STRANGER = 65534


@pytest.mark.parametrize(
    ("owner", "mode"),
    [pytest.param(STRANGER, 0o755, id="of another user"), pytest.param(None, 0o777, id="writable by everybody")],
)
def test_folder_that_another_user_could_have_filled_is_refused(path: str, owner: int | None, mode: int) -> None:
    """Refuse a folder that another user may have created, for example in /scratch."""
    root = Path(path).parent
    root.mkdir()
    if owner is not None:
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(root, owner, owner)
    root.chmod(mode)
    with pytest.raises(lock.UntrustedError, match="is not trusted"):
        lock.acquire(path, THIS_CONTROLLER, HOUR)
    assert not os.path.exists(path)


def test_released_lock_is_not_renewed(path: str) -> None:
    lock.acquire(path, THIS_CONTROLLER, HOUR)
    lock.release(path, THIS_CONTROLLER)
    lock.renew(path, THIS_CONTROLLER)
    assert not os.path.exists(path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"token": "b"}'])
def test_incomplete_lock_is_ignored(path: str, content: str) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_text(content)
    assert lock.acquire(path, THIS_CONTROLLER, HOUR) == ""
    assert holder(path) == "a"


def test_one_of_many_concurrent_controllers_takes_the_lock(path: str) -> None:
    winners = []

    def attempt(number: int) -> None:
        with contextlib.suppress(lock.HeldError):
            lock.acquire(path, {**THIS_CONTROLLER, "token": str(number)}, HOUR)
            winners.append(str(number))

    with ThreadPoolExecutor(16) as pool:
        for _ in range(200):  # without the lock of the file, a few rounds have several winners
            list(pool.map(attempt, range(16)))
            assert winners == [holder(path)]
            lock.release(path, {"token": winners.pop()})
