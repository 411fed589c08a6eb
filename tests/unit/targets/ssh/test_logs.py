"""The lines that a node prints while a run is followed are checked."""

from __future__ import annotations

import pytest

from orchestrator.errors import ExecuteError
from orchestrator.targets.ssh.logs import Stream
from tests.support.recorded import FAR_NODE, RUN_RECORD


def test_line_that_is_no_chunk_of_the_runs_logs_is_refused() -> None:
    for line, message in (
        ('{"rank": 99, "at": 0, "lines": ["a"]}', "unexpected rank 99"),  # rank of another run
        ('{"rank": 0, "at": -1, "lines": []}', "unexpected rank 0"),  # position
        ("[" * 100_000, "nested too deeply"),
        ("5", "not an object"),  # number
    ):
        with pytest.raises(ExecuteError, match=message):
            Stream(record=RUN_RECORD, host=FAR_NODE, options=()).chunk_of(line)
