"""The lock of a node, on real files."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.roles.modules import load_module

lock = load_module("orch_lock")
HOUR = 3600
OURS = {"token": "a", "user": "me", "host": "laptop", "pid": "1", "what": "provision"}
THEIRS = {**OURS, "token": "b", "user": "you", "what": "sync"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "orch" / lock.NAME)


def holder(path: str) -> str:
    return str(json.loads(Path(path).read_text())["token"])


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The node's boot, and the seconds since then."""
    clock: dict[str, Any] = {"boot": "first", "now": 10_000.0, "machine": ["a", "1"]}
    monkeypatch.setattr(lock, "since_boot", lambda: (clock["boot"], clock["now"]))
    monkeypatch.setattr(lock, "this_machine", lambda: clock["machine"])
    return clock


def test_a_free_node_is_taken_and_given_back(path: str) -> None:
    assert lock.take(path, OURS, HOUR) == ""
    assert holder(path) == "a"
    assert os.stat(path).st_mode & 0o777 == 0o644
    lock.release(path, OURS)
    assert not os.path.exists(path)
    lock.release(path, OURS)


def test_another_is_told_who_holds_it(path: str) -> None:
    lock.take(path, THEIRS, HOUR)
    with pytest.raises(lock.Held) as held:
        lock.take(path, OURS, HOUR)
    assert str(held.value).startswith("you@laptop (process 1) has been syncing this node since 20")
    assert str(held.value).endswith(f"if it is gone, remove {path}")
    lock.release(path, OURS)
    assert holder(path) == "b"


def test_the_same_controller_carries_on_at_once(path: str, kernel: dict[str, Any]) -> None:
    lock.take(path, OURS, HOUR)
    kernel["now"] += HOUR + 60
    assert lock.take(path, {**OURS, "pid": "2"}, HOUR) == ""
    with pytest.raises(lock.Held, match="process 2"):
        lock.take(path, THEIRS, HOUR)


def test_an_old_lock_is_taken_over_and_that_is_said(path: str, kernel: dict[str, Any]) -> None:
    lock.take(path, THEIRS, HOUR)
    kernel["now"] += HOUR + 60
    assert "took over a lock of 61 minutes ago: you@laptop" in lock.take(path, OURS, HOUR)
    lock.release(path, THEIRS)
    assert holder(path) == "a"


def test_a_living_controller_keeps_its_node(path: str, kernel: dict[str, Any]) -> None:
    """However long its work takes, and whatever becomes of the clock meanwhile."""
    lock.take(path, THEIRS, HOUR)
    began = json.loads(Path(path).read_text())["started"]
    for _ in range(12):
        kernel["now"] += 600
        lock.renew(path, THEIRS)
    os.utime(path, (0, 0))  # a clock that was far in the past when it was written
    with pytest.raises(lock.Held, match=f"since {began}"):
        lock.take(path, OURS, HOUR)
    kernel["now"] += HOUR + 60
    assert "took over a lock of 61 minutes ago" in lock.take(path, OURS, HOUR)
    with pytest.raises(lock.Held, match="another has taken this node over: me@laptop"):
        lock.renew(path, THEIRS)
    assert holder(path) == "a"


def test_a_boot_ends_no_lock_at_once(path: str, kernel: dict[str, Any]) -> None:
    lock.take(path, THEIRS, HOUR)
    kernel.update(boot="second", now=60.0)
    with pytest.raises(lock.Held):
        lock.take(path, OURS, HOUR)
    kernel["now"] = HOUR + 60.0
    assert "took over" in lock.take(path, OURS, HOUR)


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
    lock.take(path, THEIRS, HOUR)
    kernel.update(boot="other", now=1e6, machine=machine)
    with pytest.raises(lock.Held):
        lock.take(path, OURS, HOUR)
    renewed = os.stat(path).st_mtime - HOUR - 60
    os.utime(path, (renewed, renewed))
    assert "took over a lock of 61 minutes ago" in lock.take(path, OURS, HOUR)


def test_lock_is_not_followed_through_a_link(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    os.symlink("/nonexistent", path)
    with pytest.raises(OSError, match="symbolic links"):
        lock.take(path, OURS, HOUR)


def test_nothing_is_renewed_that_was_given_back(path: str) -> None:
    lock.take(path, OURS, HOUR)
    lock.release(path, OURS)
    lock.renew(path, OURS)
    assert not os.path.exists(path)


def test_a_lock_of_an_older_orch_counts(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_text(json.dumps({**THEIRS, "started": "then"}))
    with pytest.raises(lock.Held):
        lock.take(path, OURS, HOUR)
    os.utime(path, (0, 0))
    assert "took over" in lock.take(path, OURS, HOUR)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_lock_that_was_never_finished_holds_nobody(path: str, content: str) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_text(content)
    assert lock.take(path, OURS, HOUR) == ""
    assert holder(path) == "a"


def test_of_many_at_once_one_gets_it(path: str) -> None:
    winners = []

    def attempt(token: str) -> None:
        try:
            lock.take(path, {**OURS, "token": token}, HOUR)
            winners.append(token)
        except lock.Held:
            pass

    threads = [threading.Thread(target=attempt, args=(str(number),)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert winners == [holder(path)]
