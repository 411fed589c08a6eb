"""The lines of ranks in local copies of their logs."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import patch

from orch_node.streams import STDERR, STDOUT, LogWriter

from orchestrator.runs import store
from orchestrator.runs.logs import copied_lines
from tests.support.recorded import make_run


def test_lines_of_ranks_are_merged_in_the_order_of_time(tmp_path: Path) -> None:
    run = store.load(make_run(tmp_path, ranks=3, nodes=1))
    writers = [LogWriter(run.folder / f"ranks/rank-{rank}.log", print) for rank in range(2)]
    written = (
        (0, "first\n", STDOUT, 10.0),
        (1, "second, ", STDERR, 11.0),  # a line has the time of its end
        (0, "third\nfourth\n", STDERR, 12.0),
        (1, "which ends late\n", STDERR, 13.0),
        (0, "last", STDOUT, 14.0),
    )
    for rank, text, stream, time in written:
        with patch("orch_node.streams.time.time", return_value=time):
            writers[rank].write(text.encode(), stream)
    (run.folder / "ranks/rank-2.log").write_text("without times\n")
    lines = list(copied_lines(run, dict.fromkeys(range(3), "node0"), {}))
    assert [(line.rank, line.text, line.stream, line.time) for line in lines] == [
        (0, "first", STDOUT, 10.0),
        (0, "third", STDERR, 12.0),
        (0, "fourth", STDERR, 12.0),
        (1, "second, which ends late", STDERR, 13.0),
        (0, "last", STDOUT, 14.0),
        (2, "without times", STDOUT, math.inf),
    ]
    later = copied_lines(run, {0: "node0"}, {0: len("first\n")})
    assert [line.text for line in later] == ["third", "fourth", "last"]
    (run.folder / "ranks/rank-0.times").write_text("damaged\n0 1e3\n0 nan\n")
    assert {line.time for line in copied_lines(run, {0: "node0"}, {})} == {math.inf}
