"""Batches of rows of about the same length: which rows share one, in which order."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from orch_training.shuffling import EpochSampler, Grouping

SIZE, BATCH = 1003, 8
LENGTHS = [random.Random(row).randrange(20, 400) for row in range(SIZE)]


def batches(epoch: int = 0, *, grouped: bool = True) -> list[list[int]]:
    sampler = EpochSampler(SIZE, 7, Grouping(LENGTHS, BATCH) if grouped else None)
    sampler.epoch = epoch
    order = list(sampler)
    assert sorted(order) == list(range(SIZE))
    return [order[at : at + BATCH] for at in range(0, SIZE, BATCH)]


def padding(found: list[list[int]]) -> float:
    """Share of what is computed that is padding."""
    computed = sum(len(rows) * max(LENGTHS[row] for row in rows) for rows in found)
    return 1 - sum(LENGTHS) / computed


def test_there_is_little_padding_left() -> None:
    assert padding(batches()) < 0.05 < 0.3 < padding(batches(grouped=False))


def test_an_order_is_a_function_of_seed_and_epoch() -> None:
    assert batches(3) == batches(3)
    assert batches(3) != batches(4)


def test_long_batches_do_not_come_last() -> None:
    """As they would if pools were merely sorted: the end of an epoch would be of one kind."""
    lengths = [max(LENGTHS[row] for row in rows) for rows in batches()[:-1]]
    assert lengths != sorted(lengths)
    half = len(lengths) // 2
    means = [sum(part) / len(part) for part in (lengths[:half], lengths[half:])]
    assert means[0] == pytest.approx(means[1], rel=0.2)


def test_rows_that_fill_no_batch_are_those_of_the_plain_order() -> None:
    assert batches()[-1] == batches(grouped=False)[-1]
    assert len(batches()[-1]) == SIZE % BATCH
