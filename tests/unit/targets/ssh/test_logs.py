"""The lines that a node prints while a run is followed are checked."""

from __future__ import annotations

import pytest

from orchestrator.errors import ExecuteError
from orchestrator.targets.ssh.logs import Stream
from tests.support.recorded import FAR_NODE, RUN_RECORD


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param('{"rank": 99, "at": 0, "lines": ["a"]}', "unexpected rank 99", id="rank of another run"),
        pytest.param('{"rank": 0, "at": -1, "lines": []}', "unexpected rank 0", id="position"),
        pytest.param("[" * 100_000, "nested too deeply", id="nested"),
        pytest.param("5", "not an object", id="number"),
    ],
)
def test_line_that_is_no_chunk_of_the_runs_logs_is_refused(line: str, message: str) -> None:
    with pytest.raises(ExecuteError, match=message):
        Stream(record=RUN_RECORD, host=FAR_NODE, options=()).chunk_of(line)
