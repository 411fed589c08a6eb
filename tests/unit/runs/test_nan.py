"""A run whose loss was NaN is marked."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node.protocol.events import Event, Launched, Progress, Warned

from orchestrator.runs.outcome import nan_notes
from orchestrator.runs.rows import progress_words

NAN = "warning: the loss has been NaN in 10 backward passes in a row."


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([Warned(rank=0, text=NAN), Warned(rank=1, text=NAN)], ["warning: the loss has been NaN on ranks 0-1"]),
        ([Warned(rank=1, text=NAN)], ["warning: the loss has been NaN on rank 1"]),
        ([Warned(rank=0, text="the weights have not changed")], []),
        ([Launched(ranks=2)], []),
    ],
    ids=["two ranks", "one rank", "another warning", "none"],
)
def test_end_of_a_run_repeats_that_its_loss_was_nan(events: list[Event], expected: list[str]) -> None:
    assert [note.partition(";")[0] for note in nan_notes(None, events)] == expected


def test_list_of_runs_marks_a_loss_that_was_nan(tmp_path: Path) -> None:
    progress = Progress(rank=0, phase="train", step=30, steps=30)
    assert progress_words(progress, is_nan=True) == "train 30/30, loss NaN"
    assert progress_words(None, is_nan=True) == "loss NaN"
    assert progress_words(progress) == "train 30/30"
