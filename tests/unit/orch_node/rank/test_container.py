"""The wrapper of a rank in a container."""

from __future__ import annotations

from orch_node.rank import container


def test_parse_status_ignores_other_and_damaged_lines() -> None:
    for line, pid in (
        (b'{"contained": {"pid": 7}}\n', 7),  # status
        (b'{"contained": {"pid": "7"}}\n', None),  # wrong-type
        (b'{"contained": [\n', None),  # incomplete
        (b'{"contained": ' + b"[" * 9000 + b"\n", None),  # nested
        (b'{"event": "exit"}\n', None),
    ):
        status = container.parse_status(line)
        assert (status.pid if status else None) == pid


def test_exit_code_of_the_engine_may_mean_a_signal() -> None:
    for code, expected in ((0, 0), (1, 1), (125, 125), (137, -9), (143, -15), (134, -6), (255, 255)):
        assert container.exit_code_or_signal(code) == expected
