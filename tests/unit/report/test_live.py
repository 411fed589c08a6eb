"""The live view of a run."""

from __future__ import annotations

import pytest
from orch_node.protocol.events import Failed, Launched, Progress, Restarting, Stalled, Warned
from orch_node.protocol.outcome import Failure

from orchestrator.report import live
from tests.unit.runs.test_tracebacks import SHAPES


def test_progress_shows_the_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    for steps, expected in (
        ([(0, 0), (20, 10), (90, 40)], ["train: 0/40", "train: 10/40 01:00 left", "train: 40/40"]),  # run
        # A restarted run repeats the steps since its checkpoint.
        ([(0, 0), (20, 10), (100, 5), (102, 15), (104, 25)], ["train: 25/40 00:03 left"]),  # restart
        ([(0, None), (100, 20), (110, 30)], ["train: 30/40 00:10 left"]),  # a resumed script that names its phase first
    ):
        screen = live.Screen()
        for seconds, step in steps:
            screen.show(Progress(rank=0, time=1e9 + seconds, phase="train", step=step, steps=40))
        assert capsys.readouterr().err.splitlines()[-len(expected) :] == expected
    for loss, text in ((float("nan"), "nan"), (0.69314, "0.6931"), (3e-5, "3e-05"), (1e300, "1e+300"), (0.0, "0.0000")):
        live.Screen().show(Progress(rank=0, step=3, loss=loss))
        assert f"progress: step 3 loss {text}\n" in capsys.readouterr().err, "it needs no phase"
    screen.show(Stalled(text="x", stands={"zero": "a", "1": "b", "9" * 5000: "c"}))
    assert capsys.readouterr().err == "x\n  rank 1: b\n"


def test_error_is_shown_before_the_ranks_start_again(capsys: pytest.CaptureFixture[str]) -> None:
    screen = live.Screen()
    screen.show(Failed(failure=Failure(rank=1, node="node0", code=1, text=SHAPES)))
    assert "mat1" not in capsys.readouterr().err
    screen.show(Failed(failure=Failure(rank=-1, text="no layout")))
    assert capsys.readouterr().err.splitlines()[0] == "a process without a rank failed"
    screen.show(Failed(failure=Failure(rank=1, node="node0", code=1, text=SHAPES)))
    screen.show(Restarting(attempt=2, of=1))
    lines = capsys.readouterr().err.splitlines()
    assert "    return model(x)" in lines
    assert "mat1 and mat2" in lines[-2]
    assert lines[-1] == "starts again: attempt 2 of 2"
    screen.show(Launched(attempt=2, ranks=2))
    screen.show(Restarting(attempt=3, of=2))  # after a lost node, for example
    assert capsys.readouterr().err.splitlines() == ["starts again: attempt 3 of 3"]


@pytest.mark.parametrize(("shown", "is_printed"), [("none", False), ("1", False), ("0", True), ("all", True)])
def test_warning_is_shown_once_whether_or_not_its_rank_prints_it(
    shown: str, is_printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = live.Screen(shown)
    for rank in (0, 0, 1):
        screen.show(Warned(rank=rank, text="warning: slow"))
    assert capsys.readouterr().err.splitlines() == ["rank 0: warning: slow"] * (not is_printed)
