from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.roles.modules import load_module
from tests.support.files import set_age

lock = load_module("orch_lock")
HOUR = 3600
THIS_CONTROLLER = {"token": "a", "user": "me", "host": "laptop", "pid": "1", "what": "provision"}
OTHER_CONTROLLER = {**THIS_CONTROLLER, "token": "b", "user": "you", "what": "sync"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "orch" / lock.NAME)


def holder(path: str) -> str:
    return str(json.loads(Path(path).read_text())["token"])


def test_error_names_the_holder(path: str) -> None:
    lock.acquire(path, OTHER_CONTROLLER, HOUR)
    with pytest.raises(lock.HeldError) as error:
        lock.acquire(path, THIS_CONTROLLER, HOUR)
    assert str(error.value).startswith("you@laptop (process 1) has been syncing this node since 20")
    assert str(error.value).endswith(f"if it has ended, remove {path}")
    assert os.stat(path).st_mode & 0o777 == 0o644
    lock.release(path, THIS_CONTROLLER)
    assert holder(path) == "b"
    lock.release(path, OTHER_CONTROLLER)
    assert not os.path.exists(path)


def test_same_controller_continues_at_once(path: str) -> None:
    lock.acquire(path, THIS_CONTROLLER, HOUR)
    set_age(Path(path), HOUR + 60)
    assert lock.acquire(path, {**THIS_CONTROLLER, "pid": "2"}, HOUR) == ""
    with pytest.raises(lock.HeldError, match="process 2"):
        lock.acquire(path, OTHER_CONTROLLER, HOUR)


def test_two_nodes_of_one_command_that_share_the_folder_are_named(path: str) -> None:
    lock.acquire(path, {**THIS_CONTROLLER, "node": "node0"}, HOUR)
    with pytest.raises(lock.HeldError, match=rf"^node0 and node1 share {os.path.dirname(path)}: set orch_root"):
        lock.acquire(path, {**THIS_CONTROLLER, "node": "node1"}, HOUR)
    lock.acquire(path, {**THIS_CONTROLLER, "node": "node1", "pid": "2"}, HOUR)  # after an interruption


def test_old_lock_is_taken_over(path: str) -> None:
    lock.acquire(path, OTHER_CONTROLLER, HOUR)
    set_age(Path(path), HOUR - 60)
    with pytest.raises(lock.HeldError):
        lock.acquire(path, THIS_CONTROLLER, HOUR)
    set_age(Path(path), 8 * HOUR - 60)
    assert "took over a lock that was taken 8 hours ago: you@laptop" in lock.acquire(path, THIS_CONTROLLER, HOUR)
    lock.release(path, OTHER_CONTROLLER)
    assert holder(path) == "a"


def test_lock_is_not_followed_through_a_link(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    os.symlink("/nonexistent", path)
    with pytest.raises(OSError, match="symbolic links"):
        lock.acquire(path, THIS_CONTROLLER, HOUR)


def test_folder_that_another_user_could_have_filled_is_refused(path: str) -> None:
    """Refuse a folder that another user may have created, for example in /scratch."""
    root = Path(path).parent
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(lock.UntrustedError, match="is not trusted"):
        lock.acquire(path, THIS_CONTROLLER, HOUR)
    if os.geteuid() == 0:  # only root can give a folder away
        root.chmod(0o755)
        os.chown(root, 65534, 65534)
        with pytest.raises(lock.UntrustedError, match="is not trusted"):
            lock.acquire(path, THIS_CONTROLLER, HOUR)
    assert not os.path.exists(path)


@pytest.mark.parametrize("content", ["{", "[]", '{"token": "b"}'])
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
        for _ in range(100):  # without the lock of the file, a few rounds have several winners
            list(pool.map(attempt, range(16)))
            assert winners == [holder(path)]
            lock.release(path, {"token": winners.pop()})
