"""Read and write events, and reject damaged ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol.events import KINDS, Exited, Other, Started, UnreadableEvent, parse, remaining_seconds, render

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


def test_damaged_event_has_a_reason_and_another_line_is_none() -> None:
    for line, rank, reason in (
        ('{"event": "progress", "rank": 1, "step": "x"}', 1, "progress: step is 'x', not"),  # text
        ('{"event": "progress", "rank": "1"}', -1, "rank is '1', not a whole number"),  # rank as text
        ('{"event": "exit", "rank": 0, "code": 1e400}', 0, "exit: code is inf, not"),  # infinity
        ('{"event": "joined", "rank": 0, "time": -5}', 0, "joined: time -5"),  # negative time
        ('{"event": "joined", "rank"', -1, "not valid JSON"),  # torn
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


def test_started_rank_can_be_signalled_only_by_valid_process_ids() -> None:
    for started in (Started(rank=0), Started(rank=0, pid=1, wrapper=-1), Started(pid=2**40)):
        assert not started.has_processes
    started = Started(rank=0, pid=12, wrapper=11)
    assert started.has_processes
    assert replace(started, rank=1).has_processes


def test_remaining_seconds_follow_the_mean_time_of_a_step() -> None:
    for seconds, first, step, steps, expected in (
        (30.0, 0, 10, 40, 90.0),  # from the start
        (30.0, 20, 30, 40, 30.0),  # after a resume
        (30.0, 0, 0, 40, None),  # first step
        (30.0, 0, 1, float("inf"), None),
        (30.0, 0, float("nan"), 40, None),
    ):
        assert remaining_seconds(seconds, first=first, step=step, steps=steps) == expected
