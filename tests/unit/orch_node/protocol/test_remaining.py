"""The estimate of the remaining time."""

from __future__ import annotations

import pytest
from orch_node.protocol.remaining import format_seconds, remaining_seconds

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("seconds", "first", "step", "steps", "expected"),
    [
        pytest.param(30.0, 0, 10, 40, 90.0, id="from the start"),
        pytest.param(30.0, 20, 30, 40, 30.0, id="after a resume"),
        pytest.param(30.0, 0, 0, 40, None, id="first step"),
        pytest.param(30.0, 0, 40, 40, None, id="last step"),
        pytest.param(0.0, 0, 10, 40, None, id="no time"),
        pytest.param(30.0, 0, 1, INFINITY, None, id="infinite"),
        pytest.param(30.0, 0, NAN, 40, None, id="step not a number"),
        pytest.param(NAN, 0, 10, 40, None, id="time not a number"),
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
def test_durations_are_formatted_as_by_tqdm(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
