"""Read and write events, and reject damaged ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol.events import (
    KINDS,
    Exited,
    Other,
    Progress,
    Started,
    UnreadableEvent,
    UnreadableEvents,
    parse,
    remaining_seconds,
    render,
)

from tests.support.hostile import DEEP_EVENT, HUGE_NUMBER_EVENT, LINES

# One line per kind, and one that a script defines.
RECORDED_EVENTS = [json.loads(line) for line in Path(__file__).with_name("events.jsonl").read_text().splitlines()]
LONG_EVENT = '{"event": "x", "rank": 0, "text": "' + "x" * (1 << 25) + '"}'


def test_event_is_read_as_it_was_written() -> None:
    for event in RECORDED_EVENTS:
        result = parse(json.dumps(event))
        assert isinstance(result, KINDS.get(event["event"], Other))
        assert json.loads(render(result)) == event
    assert {*KINDS} == {event["event"] for event in RECORDED_EVENTS} - {"of-the-script"}, "each kind has a line"


def test_event_of_another_version_is_read() -> None:
    """Fill in missing fields and drop unknown ones."""
    event = parse('{"event": "exit", "rank": 1, "time": 2, "code": 3, "weather": "fine"}')
    assert event == Exited(rank=1, time=2, code=3)
    assert event.is_failure


def test_progress_keeps_the_figures_of_a_script() -> None:
    """Keep a loss of NaN too, because the user of the script must see it."""
    event = parse('{"event": "progress", "rank": 0, "step": 3, "loss": NaN, "lr": 1e-4}')
    assert isinstance(event, Progress)
    assert event.figures == {"lr": 1e-4}
    assert math.isnan(event.loss)


def test_damaged_event_has_a_reason_and_another_line_is_none() -> None:
    for line, rank, reason in (
        ('{"event": "progress", "rank": 1, "step": "x"}', 1, "progress: step is 'x', not"),  # text
        ('{"event": "progress", "rank": 1, "step": NaN}', 1, "progress: step is nan, not"),
        ('{"event": "progress", "rank": "1"}', -1, "rank is '1', not a whole number"),  # rank as text
        ('{"event": "progress", "rank": -2}', -1, "progress: rank -2"),  # negative rank
        ('{"event": "joined"}', -1, "rank"),
        ('{"event": "exit", "rank": 0, "code": 1e400}', 0, "exit: code is inf, not"),  # infinity
        ('{"event": "joined", "rank": 0, "time": -5}', 0, "joined: time -5"),  # negative time
        ('{"event": "joined", "rank": 0, "time": 1e300}', 0, "joined: time 1e+300"),  # far future
        ('{"event": "joined", "rank"', -1, "not valid JSON"),  # torn
        ('{"event": 7, "rank": 0}', 0, "an event must have a name"),
        (DEEP_EVENT, -1, "nested"),
        (HUGE_NUMBER_EVENT, -1, "digits"),
        (LONG_EVENT, -1, "more than 16777216 bytes"),
    ):
        result = parse(line)
        assert isinstance(result, UnreadableEvent)
        assert result.rank == rank
        assert reason in result.text
        assert len(result.text) < 300
    for other_line in ("words", "{torn", "[]", "null", "{}", '{"a": "event"}', "\x00\xff", b"\xff\xfe"):
        assert parse(other_line) is None


@given(line=LINES | st.binary(max_size=100))
def test_any_line_can_be_parsed_and_the_event_rendered(line: str | bytes) -> None:
    event = parse(line)
    if event is not None:
        parsed_again = parse(render(event))
        assert render(parsed_again or UnreadableEvent()) == render(event)  # NaN differs from itself.


def test_unreadable_events_are_counted_per_rank_with_their_first_reasons() -> None:
    tally = UnreadableEvents()
    for number in range(100):
        tally.add(UnreadableEvent(rank=0, text=f"reason {number}"))
    tally.add(UnreadableEvent(rank=-1, count=2, text="not valid JSON"))
    without_a_rank, message = tally.describe_all()
    assert without_a_rank == "note: 2 events without a rank could not be read: not valid JSON"
    assert message.startswith("note: 100 events of rank 0")
    assert message.endswith("reason 0; reason 1; reason 2; and others")
    assert len(tally.reasons[0]) < 5
    assert [event.count for event in tally.events()] == [2, 100]


def test_started_rank_can_be_signalled_only_by_valid_process_ids() -> None:
    for started in (Started(rank=0), Started(rank=0, pid=1, wrapper=-1), Started(pid=2**40)):
        assert not started.has_processes
    started = Started(rank=0, pid=12, wrapper=11)
    assert started.has_processes
    assert replace(started, rank=1).has_processes


NAN, INFINITY = float("nan"), float("inf")


def test_remaining_seconds_follow_the_mean_time_of_a_step() -> None:
    for seconds, first, step, steps, expected in (
        (30.0, 0, 10, 40, 90.0),  # from the start
        (30.0, 20, 30, 40, 30.0),  # after a resume
        (30.0, 0, 0, 40, None),  # first step
        (30.0, 0, 40, 40, None),  # last step
        (0.0, 0, 10, 40, None),  # no time
        (30.0, 0, 1, INFINITY, None),  # infinite
        (30.0, 0, NAN, 40, None),  # step not a number
        (NAN, 0, 10, 40, None),  # time not a number
    ):
        assert remaining_seconds(seconds, first=first, step=step, steps=steps) == expected
