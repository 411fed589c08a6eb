"""The examples of every step are dealt out to any number of ranks."""

from __future__ import annotations

import random
import sys
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.paths import TRAIN

sys.path.append(str(TRAIN))

from orch_training.global_batch import Dealing, GlobalBatch, describe_dealing, global_batch

few = st.integers(1, 9)


def dealt(batch: GlobalBatch, dealing: Dealing, examples: int) -> list[list[list[range]]]:
    """[step][rank][micro batch], without those that only wait for the others."""
    spans = [batch.span(step, examples) for step in range(batch.steps(examples))]
    return [
        [[part.positions for part in dealing.parts(span, rank) if part.weight] for rank in range(dealing.ranks)]
        for span in spans
    ]


@given(planned=few, ranks=few, micro=few, accumulation=st.integers(1, 4), extra=st.integers(0, 200))
def test_the_parts_of_a_step_are_the_step(planned: int, ranks: int, micro: int, accumulation: int, extra: int) -> None:
    batch = global_batch(micro=micro, accumulation=accumulation, planned=planned, facts=None)
    examples = batch.at_once + extra
    own = dealt(batch, Dealing(batch, ranks, micro), examples)
    as_planned = dealt(batch, Dealing(batch, planned, micro), examples)
    for step, (found, expected) in enumerate(zip(own, as_planned, strict=True)):
        positions = [at for rank in found for part in rank for at in part]
        assert sorted(positions) == list(batch.span(step, examples)), "each example once"
        assert sorted(positions) == sorted(at for rank in expected for part in rank for at in part)
        assert all(len(part) <= micro for rank in found for part in rank)
    seen = [at for step in own for rank in step for part in rank for at in part]
    assert len(seen) == len(set(seen)) == examples // batch.at_once * batch.at_once


@given(
    planned=few,
    ranks=few,
    micro=few,
    accumulation=st.integers(1, 4),
    extra=st.integers(0, 60),
    seed=st.integers(0, 2**32),
)
def test_the_weighted_mean_is_exact(
    planned: int, ranks: int, micro: int, accumulation: int, extra: int, seed: int
) -> None:
    """Compute the loss as DDP does: the mean over ranks of the sums over micro batches."""
    batch = GlobalBatch(micro * planned, accumulation)
    dealing, examples = Dealing(batch, ranks, micro), batch.at_once + extra
    draw = random.Random(seed)
    losses = [draw.randint(-1000, 1000) for _ in range(examples)]
    for step in range(batch.steps(examples)):
        span = batch.span(step, examples)
        sums = [
            sum(part.weight * mean(part.positions, losses) for part in dealing.parts(span, rank))
            for rank in range(ranks)
        ]
        assert sum(sums) / ranks == mean(span, losses)


def mean(positions: range, losses: list[int]) -> Fraction:
    return Fraction(sum(losses[at] for at in positions), len(positions))


@given(planned=few, ranks=few, micro=few, accumulation=st.integers(1, 4), extra=st.integers(0, 60))
def test_no_rank_waits_for_another(planned: int, ranks: int, micro: int, accumulation: int, extra: int) -> None:
    """Give all ranks as many micro batches; none is empty, and their sizes differ by at most one."""
    batch = GlobalBatch(micro * planned, accumulation)
    dealing = Dealing(batch, ranks, micro)
    for step in range(batch.steps(batch.at_once + extra)):
        span = batch.span(step, batch.at_once + extra)
        parts = [dealing.parts(span, rank) for rank in range(ranks)]
        assert {len(own) for own in parts} == {dealing.micro_batches}
        assert all(part.positions for own in parts for part in own)
        sizes = {len(part.positions) if part.weight else 0 for own in parts for part in own}
        assert max(sizes) - min(sizes) <= 1


@given(planned=few, micro=few, accumulation=st.integers(1, 4))
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


def test_the_last_step_of_an_epoch_may_be_shorter() -> None:
    batch = GlobalBatch(at_once=4, rounds=3)
    spans = [batch.span(step, 23) for step in range(batch.steps(23))]
    assert spans == [range(0, 12), range(12, 20)], "3 examples fill no round"
    (one, two), (three, four) = (Dealing(batch, 2, 6).parts(span, 1) * 2 for span in spans)
    assert one.weight == two.weight == three.weight == four.weight == 1


def test_a_checkpoint_decides_on_the_global_batch() -> None:
    arguments = {"micro": 4, "accumulation": 1, "planned": 1}
    assert global_batch(**arguments, facts=None) == GlobalBatch(4, 1)
    batch = GlobalBatch(6, 2)
    assert global_batch(**arguments, facts={"world_size": 3, **batch.facts}) == batch


def test_the_decision_in_words() -> None:
    def words(size: int, ranks: int) -> str:
        return describe_dealing(Dealing(GlobalBatch(size, 1), ranks, 4), "as planned for 3 ranks")

    assert words(12, 1) == (
        "the global batch stays 12 examples, as planned for 3 ranks: 1 rank computes 3 micro batches of 4"
    )
    assert words(12, 2).endswith("each of 2 ranks computes 2 micro batches of 3")
    assert words(7, 2).endswith("each of 2 ranks computes 1 micro batch of 3 to 4, weighted")
