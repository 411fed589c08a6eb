"""The estimate of the remaining time and the places that show it."""

from __future__ import annotations

import pytest
from orch_node.protocol.events import Progress
from orch_node.protocol.remaining import format_seconds, remaining_seconds

from orchestrator.report import live


@pytest.mark.parametrize(
    ("seconds", "first", "step", "steps", "expected"),
    [
        (30.0, 0, 10, 40, 90.0),
        (30.0, 20, 30, 40, 30.0),
        (30.0, 0, 0, 40, None),
        (30.0, 0, 40, 40, None),
        (0.0, 0, 10, 40, None),
        (30.0, 0, 1, float("inf"), None),
        (30.0, 0, float("nan"), 40, None),
        (float("nan"), 0, 10, 40, None),
    ],
    ids=[
        "from the start",
        "after a resume",
        "first step",
        "last step",
        "no time",
        "infinite",
        "step not a number",
        "time not a number",
    ],
)
def test_remaining_seconds_follow_the_mean_time_of_a_step(
    seconds: float, first: float, step: float, steps: float, expected: float | None
) -> None:
    assert remaining_seconds(seconds, first=first, step=step, steps=steps) == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "00:00"), (125, "02:05"), (3599.6, "1:00:00"), (90_061, "25:01:01")],
    ids=["zero", "minutes", "rounded to an hour", "more than a day"],
)
def test_durations_are_shown_as_by_tqdm(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_progress_shows_the_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    screen = live.Screen()
    for seconds, step in ((0, 0), (20, 10), (90, 40)):
        screen.show(Progress(rank=0, time=1e9 + seconds, phase="train", step=step, steps=40))
    assert capsys.readouterr().err.splitlines() == ["train: 0/40", "train: 10/40 01:00 left", "train: 40/40"]


def test_the_estimate_restarts_with_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    # A restarted run repeats the steps since its checkpoint.
    screen = live.Screen()
    for seconds, step in ((0, 0), (20, 10), (100, 5), (102, 15), (104, 25)):
        screen.show(Progress(rank=0, time=1e9 + seconds, phase="train", step=step, steps=40))
    assert capsys.readouterr().err.splitlines()[-1] == "train: 25/40 00:03 left"
