"""Check that the examples of every step are distributed to any number of ranks."""

from __future__ import annotations

import random
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from orch_training.batches import Dealing, GlobalBatch, global_batch

few = st.integers(1, 9)
COUNTS = {"planned": few, "micro": few, "accumulation": st.integers(1, 4)}


def distribute(batch: GlobalBatch, dealing: Dealing, examples: int) -> list[list[list[range]]]:
    """Return the positions by step, rank and micro batch, without the parts of weight 0."""
    spans = [batch.span(step, examples) for step in range(batch.steps(examples))]
    return [
        [[part.positions for part in dealing.parts(span, rank) if part.weight] for rank in range(dealing.ranks)]
        for span in spans
    ]


@given(**COUNTS, ranks=few, extra=st.integers(0, 200))
def test_parts_of_a_step_are_the_step(planned: int, ranks: int, micro: int, accumulation: int, extra: int) -> None:
    batch = global_batch(micro=micro, accumulation=accumulation, planned=planned, facts=None)
    examples = batch.round_size + extra
    parts = distribute(batch, Dealing(batch, ranks, micro), examples)
    planned_parts = distribute(batch, Dealing(batch, planned, micro), examples)
    for step, (step_parts, expected) in enumerate(zip(parts, planned_parts, strict=True)):
        positions = [position for rank in step_parts for part in rank for position in part]
        assert sorted(positions) == list(batch.span(step, examples)), "each example once"
        assert sorted(positions) == sorted(position for rank in expected for part in rank for position in part)
        assert all(len(part) <= micro for rank in step_parts for part in rank)
    positions = [position for step in parts for rank in step for part in rank for position in part]
    assert len(positions) == len(set(positions)) == examples // batch.round_size * batch.round_size


@given(**COUNTS, ranks=few, extra=st.integers(0, 60), seed=st.integers(0, 2**32))
def test_weighted_mean_is_exact_and_no_rank_waits(
    planned: int, ranks: int, micro: int, accumulation: int, extra: int, seed: int
) -> None:
    """Compute the loss as DDP does: the mean over ranks of the sums over micro batches.

    All ranks have as many micro batches; none is empty, and their sizes differ by at most one.
    """
    batch = GlobalBatch(micro * planned, accumulation)
    dealing, examples = Dealing(batch, ranks, micro), batch.round_size + extra
    draw = random.Random(seed)
    losses = [draw.randint(-1000, 1000) for _ in range(examples)]
    for step in range(batch.steps(examples)):
        span = batch.span(step, examples)
        parts = [dealing.parts(span, rank) for rank in range(ranks)]
        assert {len(rank_parts) for rank_parts in parts} == {dealing.micro_batches}
        micro_batches = [part for rank_parts in parts for part in rank_parts]
        assert all(part.positions for part in micro_batches)
        assert sum(part.weight * mean(part.positions, losses) for part in micro_batches) / ranks == mean(span, losses)
        sizes = {len(part.positions) if part.weight else 0 for part in micro_batches}
        assert max(sizes) - min(sizes) <= 1


def mean(positions: range, losses: list[int]) -> Fraction:
    return Fraction(sum(losses[position] for position in positions), len(positions))


@given(**COUNTS)
def test_as_planned_nothing_changes(planned: int, micro: int, accumulation: int) -> None:
    """Deal out micro batches of equal weight in turn, as accelerate does."""
    batch = GlobalBatch(micro * planned, accumulation)
    dealing = Dealing(batch, planned, micro)
    assert dealing.micro_batches == accumulation
    for rank in range(planned):
        for index, part in enumerate(dealing.parts(range(batch.size), rank)):
            start = (index * planned + rank) * micro
            assert part.positions == range(start, start + micro)
            assert part.weight == Fraction(1, accumulation)


def test_last_step_of_an_epoch_may_be_shorter() -> None:
    batch = GlobalBatch(round_size=4, rounds=3)
    spans = [batch.span(step, 23) for step in range(batch.steps(23))]
    assert spans == [range(0, 12), range(12, 20)], "3 examples fill no round"
    assert [part.weight for span in spans for part in Dealing(batch, 2, 6).parts(span, 1) * 2] == [1, 1, 1, 1]


def test_checkpoint_decides_on_the_global_batch() -> None:
    arguments = {"micro": 4, "accumulation": 1, "planned": 1}
    assert global_batch(**arguments, facts=None) == GlobalBatch(4, 1)
    batch = GlobalBatch(6, 2)
    assert global_batch(**arguments, facts={"world_size": 3, **batch.facts}) == batch
