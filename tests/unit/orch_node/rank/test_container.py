"""The wrapper of a rank in a container."""

from __future__ import annotations

import pytest
from orch_node.rank import container


@pytest.mark.parametrize(
    ("line", "pid"),
    [
        pytest.param(b'{"contained": {"pid": 7}}\n', 7, id="status"),
        pytest.param(b'{"contained": {"pid": "7"}}\n', None, id="wrong-type"),
        pytest.param(b'{"contained": [\n', None, id="incomplete"),
        pytest.param(b'{"contained": ' + b"[" * 9000 + b"\n", None, id="nested"),
        pytest.param(b'{"event": "exit"}\n', None, id="event"),
    ],
)
def test_parse_status_ignores_other_and_damaged_lines(line: bytes, pid: int | None) -> None:
    status = container.parse_status(line)
    assert (status.pid if status else None) == pid


@pytest.mark.parametrize(
    ("code", "expected"), [(0, 0), (1, 1), (125, 125), (137, -9), (143, -15), (134, -6), (255, 255)], ids=str
)
def test_exit_code_of_the_engine_may_mean_a_signal(code: int, expected: int) -> None:
    assert container.exit_code_or_signal(code) == expected
