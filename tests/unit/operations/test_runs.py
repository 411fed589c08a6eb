"""Check how a run that waits for free nodes is followed until it has really ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import copy
from pathlib import Path

import pytest
from orch_node.protocol.events import Event
from orch_node.protocol.outcome import DONE, REFUSED

from orchestrator.errors import RequestError
from orchestrator.operations import runs
from orchestrator.operations.runs import WaitingRun
from orchestrator.runs import queued, store
from orchestrator.runs.follow import LocalRun, await_start
from orchestrator.runs.logs import LogLine
from tests.support.recorded import make_run


def make_waiting_run(base: Path) -> Path:
    """Write a run that waits in its own queue."""
    folder = make_run(base, "run", ranks=1, nodes=1, seconds=1, ended=False)
    queued.mark(folder, folder.name)
    return folder


def test_error_about_a_run_that_waits_is_a_sentence(tmp_path: Path) -> None:
    folder = make_waiting_run(tmp_path)
    with queued.lock(folder):
        for waiting, wait in (
            ((), "starting"),
            (("run",), "starting on n1"),
            (("x", "run"), "waits for 1 run before it"),
        ):
            queued.write_state(folder, waiting, "starting on n1", None)
            with pytest.raises(RequestError, match=rf"^run has not started: {wait}\."):
                _ = WaitingRun(folder).handle


class Attempts:
    """A handle that only follows attempts: the first one is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states = [REFUSED, DONE]

    def events(self) -> Iterator[Event]:
        store.record_end(self.folder, self.states.pop(0))
        yield from ()

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        yield from ()
        list(self.events())


def put_back(folder: Path) -> None:
    queued.mark(folder, folder.name)
    store.forget_end(folder)
    threading.Timer(0.7, queued.unmark, [folder]).start()


def test_refused_run_that_waits_again_is_followed_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for followed in ("events", "logs"):
        folder = make_waiting_run(tmp_path / followed)
        attempts = Attempts(folder)
        monkeypatch.setattr(runs, "handle_of", lambda run, attempts=attempts: attempts)
        waiting = WaitingRun(folder)
        with queued.lock(folder):
            queued.unmark(folder)
            threading.Timer(0.2, put_back, [folder]).start()
            list(waiting.events() if followed == "events" else waiting.logs(rank=0, follow=True))
        assert store.load(folder).state == DONE
        assert not attempts.states


def test_refused_run_without_a_queue_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_waiting_run(tmp_path)
    queued.unmark(folder)
    waiting = WaitingRun(folder)
    first, second = copy(waiting.handle), copy(waiting).handle  # as another thread reads its logs
    for name in ("watching", "rank_nodes"):
        assert vars(first)[name] is vars(second)[name], "only the nodes of the shown rank are read"
    attempts = Attempts(folder)
    monkeypatch.setattr(runs, "handle_of", lambda run: attempts)
    assert not list(WaitingRun(folder).events())
    assert attempts.states == [DONE]


def test_run_whose_queue_has_ended_before_its_start_is_not_followed(tmp_path: Path) -> None:
    folder = make_waiting_run(tmp_path)
    (folder / "supervisor.json").unlink(missing_ok=True)
    assert store.load(folder).state == "killed"
    assert await_start(folder, LocalRun(folder)) is None
