"""The lock of a node, on real files."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

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


def grow_old(path: str) -> None:
    long_ago = time.time() - HOUR - 60
    os.utime(path, (long_ago, long_ago))


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


def test_the_same_controller_carries_on_at_once(path: str) -> None:
    lock.take(path, OURS, HOUR)
    grow_old(path)
    assert lock.take(path, {**OURS, "pid": "2"}, HOUR) == ""
    with pytest.raises(lock.Held, match="process 2"):
        lock.take(path, THEIRS, HOUR)


def test_an_old_lock_is_taken_over_and_that_is_said(path: str) -> None:
    lock.take(path, THEIRS, HOUR)
    grow_old(path)
    assert "took over a lock of 61 minutes ago: you@laptop" in lock.take(path, OURS, HOUR)
    lock.release(path, THEIRS)
    assert holder(path) == "a"


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
