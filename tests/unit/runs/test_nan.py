"""A run whose loss was NaN is marked."""

from __future__ import annotations

from orch_node.protocol.events import Launched, Warned

from orchestrator.runs.outcome import nan_notes

NAN = "warning: the loss has been NaN in 10 backward passes in a row."


def test_end_of_a_run_repeats_that_its_loss_was_nan() -> None:
    for events, expected in (
        ([Warned(rank=0, text=NAN), Warned(rank=1, text=NAN)], ["warning: the loss has been NaN on ranks 0-1"]),
        ([Warned(rank=1, text=NAN)], ["warning: the loss has been NaN on rank 1"]),  # one rank
        ([Warned(rank=0, text="the weights have not changed")], []),  # another warning
        ([Launched(ranks=2)], []),  # none
    ):
        assert [note.partition(";")[0] for note in nan_notes(None, events)] == expected
