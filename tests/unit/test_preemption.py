"""What a script asks of orch_node.preemption where orch has told it no signal."""

from __future__ import annotations

import pytest
from orch_node import stack_signal
from orch_node.preemption import Agreement


@pytest.mark.parametrize("words", ["", "0", "USR1"])
def test_without_a_number_from_orch_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Neither a handler nor an all-reduce, also where the user's own environment names a signal."""
    monkeypatch.setenv(stack_signal.PREEMPT, words)
    agreement = Agreement()
    assert not agreement.ask()
    assert (agreement.listens, agreement.calls, agreement.collectives) == (False, 0, 0)
