"""Group rows of about the same length into batches, and check the order of the batches."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from orch_training.batches import epoch_order

SIZE, BATCH = 1003, 8
LENGTHS = [random.Random(row).randrange(20, 400) for row in range(SIZE)]


def make_batches(*, grouped: bool = True) -> list[list[int]]:
    order = epoch_order(SIZE, 7, LENGTHS if grouped else (), BATCH)
    assert sorted(order) == list(range(SIZE))
    return [order[start : start + BATCH] for start in range(0, SIZE, BATCH)]


def padding_share(batches: list[list[int]]) -> float:
    """Return the share of the computed tokens that is padding."""
    computed = sum(len(rows) * max(LENGTHS[row] for row in rows) for rows in batches)
    return 1 - sum(LENGTHS) / computed


def test_grouped_batches_have_little_padding() -> None:
    assert padding_share(make_batches()) < 0.05 < 0.3 < padding_share(make_batches(grouped=False))


def test_batch_lengths_are_spread_over_the_epoch() -> None:
    """Check that pools are not sorted, because the end of an epoch would have only long batches."""
    lengths = [max(LENGTHS[row] for row in rows) for rows in make_batches()[:-1]]
    assert lengths != sorted(lengths)
    half = len(lengths) // 2
    means = [sum(part) / len(part) for part in (lengths[:half], lengths[half:])]
    assert means[0] == pytest.approx(means[1], rel=0.2)


def test_rows_of_the_incomplete_batch_are_those_of_the_ungrouped_order() -> None:
    assert make_batches()[-1] == make_batches(grouped=False)[-1]
    assert len(make_batches()[-1]) == SIZE % BATCH
