"""Check how the lines of a pod's log are parsed, and read only once."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from orch_node.protocol.events import Joined, UnreadableEvent

from orchestrator.targets.kubernetes.log_lines import Position, Reader, parse


def test_log_lines_are_assigned_to_files() -> None:
    assert parse("[12] loss [3]", ranks=16).rank == 12
    assert (parse("[12] loss [3]", ranks=16).file, parse("[12] x", ranks=16).text) == ("ranks/rank-12.log", "x")
    assert parse("[0] ", ranks=16).text == parse("[0]", ranks=16).text == ""
    # torchrun prints such a line in its list of failures on the pod's standard error.
    assert parse("[0]:", ranks=16).file == "launcher.log"
    event = json.dumps({"event": "joined", "rank": 1, "time": 1})
    assert parse(event, ranks=16).event == Joined(rank=1, time=1)
    metrics = parse(json.dumps({"metrics": 3, "line": '{"step": 1}'}), ranks=16)
    assert (metrics.file, metrics.text) == ("ranks/rank-3.metrics.jsonl", '{"step": 1}')
    for line in (
        "W1121 torchrun",
        "[16] x",
        "[٣] x",
        '{"metrics": -1}',
        '{"metrics": true}',
        "{" * 9999,
        "{torn",
        '{"a": 1}',
        "[x] y",
    ):
        assert parse(line, ranks=16).file == "launcher.log"
    assert isinstance(parse('{"event": 1, "rank": 2}', ranks=16).event, UnreadableEvent)


TIMES = st.lists(st.integers(0, 5), max_size=30).map(sorted)


@settings(deadline=None)
@given(times=TIMES, cuts=st.lists(st.integers(0, 30), max_size=4), nano=st.sampled_from([1, 10**8]))
def test_each_line_is_read_once_however_often_the_stream_breaks(times: list[int], cuts: list[int], nano: int) -> None:
    """Read each line once although lines share timestamps and the API resumes at whole seconds."""
    log = []
    for index, time in enumerate(times):
        fraction = f"{time * nano:09d}".rstrip("0")
        log.append(f"2026-01-01T00:00:01{'.' if fraction else ''}{fraction}Z line {index}")
    reader, lines_read = Reader(Position()), []
    for cut in [*cuts, len(log)]:
        assert reader.since in (None, "2026-01-01T00:00:01Z")
        lines_read += [text for line in log[:cut] if (text := reader.new(line)) is not None]
        reader = Reader(reader.position)
    assert lines_read == [f"line {index}" for index in range(len(log))]
