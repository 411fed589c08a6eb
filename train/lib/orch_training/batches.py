"""The examples of a step, their order, and each rank's share of them.

The global batch is planned once, as (micro batch of a rank) x (ranks) x (accumulation). It stays the same however many
ranks compute it after a restart: they divide its examples among themselves. The order depends only on seed and epoch.
Other samplers use the global random state, which differs between one rank and two, and between a new and a resumed
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from orch_training.ranks import rank as this_rank

POOL = 50  # batches: as in transformers' LengthGroupedSampler
WEIGHT = "weight"  # the key of a micro batch's weight, a Fraction, beside its tensors


@dataclass(frozen=True)
class GlobalBatch:
    """The examples of one optimizer step.

    Attributes:
        round_size: how many examples all planned ranks compute at once.
        rounds: how often they do so per step.
    """

    round_size: int
    rounds: int

    @property
    def size(self) -> int:
        return self.round_size * self.rounds

    @property
    def facts(self) -> dict[str, int]:
        """Return the batch as stored in a checkpoint's manifest."""
        return {"global_batch": self.size, "accumulation": self.rounds}

    def steps(self, examples: int) -> int:
        """Return the steps of an epoch.

        Examples that do not fill a round are omitted; the last step may have fewer rounds.
        """
        return -(-(examples // self.round_size) // self.rounds)

    def span(self, step: int, examples: int) -> range:
        """Return the positions of a step's examples in the order of its epoch, whose first step is 0."""
        end = examples // self.round_size * self.round_size
        return range(step * self.size, min((step + 1) * self.size, end))


@dataclass(frozen=True)
class Part:
    """A micro batch of one rank.

    Attributes:
        positions: the positions of its examples.
        weight: the weight of its mean loss. The gradients of a rank's micro batches are summed, those of the ranks
            averaged.
    """

    positions: range
    weight: Fraction


@dataclass(frozen=True)
class Dealing:
    """A global batch divided among `ranks`, in micro batches of at most `micro` examples."""

    batch: GlobalBatch
    ranks: int
    micro: int

    @property
    def micro_batches(self) -> int:
        """Return how many micro batches each rank computes per step."""
        return -(-self.batch.size // (self.ranks * self.micro))

    def parts(self, span: range, rank: int) -> list[Part]:
        """Return a rank's micro batches of a step, of equal size if possible.

        A rank without examples computes one with weight 0, so that no rank waits for another.
        """
        count = self.micro_batches * self.ranks
        parts = []
        for number in range(rank, count, self.ranks):
            positions = span[len(span) * number // count : len(span) * (number + 1) // count]
            parts.append(Part(positions or span[:1], Fraction(len(positions) * self.ranks, len(span))))
        return parts


def global_batch(*, micro: int, accumulation: int, planned: int, facts: Mapping[str, Any] | None) -> GlobalBatch:
    """Return the batch of the checkpoint with these facts, else that of the planned ranks."""
    if facts is None:
        return GlobalBatch(micro * planned, accumulation)
    rounds = int(facts["accumulation"])
    return GlobalBatch(int(facts["global_batch"]) // rounds, rounds)


def describe_dealing(dealing: Dealing, reason: str) -> str:
    """Return how the ranks compute a global batch that stays the same."""
    size, count, ranks = dealing.batch.size, dealing.micro_batches, dealing.ranks
    subject = "1 rank computes" if ranks == 1 else f"each of {ranks} ranks computes"
    batches = f"{count} micro batch" + ("es" if count > 1 else "")
    least, most = size // (ranks * count), -(-size // (ranks * count))
    sizes = f"{most}" if least == most else f"{least} to {most}, weighted"
    return f"the global batch stays {size} examples, {reason}: {subject} {batches} of {sizes}"


def epoch_order(size: int, seed: int, lengths: Sequence[int] = (), batch: int = 1) -> list[int]:
    """Return a permutation of the rows, the same on all ranks.

    Args:
        size: how many rows there are.
        seed: of this epoch.
        lengths: of the rows, to group rows of similar length in global batches. This needs less padding, and no rank
            waits for another with longer rows. Rows that do not fill a batch stay at the end.
        batch: rows in a global batch.
    """
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = torch.randperm(size, generator=generator).tolist()
    if not lengths:
        return order
    filled, pool = size // batch * batch, POOL * batch
    pools = (order[first : min(first + pool, filled)] for first in range(0, filled, pool))
    rows = [row for part in pools for row in sorted(part, key=lengths.__getitem__)]
    firsts = torch.randperm(filled // batch, generator=generator) * batch
    return [*(row for first in firsts.tolist() for row in rows[first : first + batch]), *order[filled:]]


@dataclass(eq=False, repr=False)
class Micros(Dataset[dict[str, Any]]):
    """The micro batches of this rank, numbered through all epochs, each with its weight.

    Attributes:
        rows: of the data.
        collate: makes a batch of rows.
        dealing: the division of the global batch among the ranks.
        seed: of the order of the first epoch.
        lengths: of the rows, to group rows of similar length.
    """

    rows: Sequence[Any]
    collate: Callable[[list[Any]], dict[str, Any]]
    dealing: Dealing
    seed: int
    lengths: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.rank = this_rank()
        self.steps = self.dealing.batch.steps(len(self.rows))  # of an epoch
        self.epoch, self.order = -1, [0]

    def __len__(self) -> int:
        """Return the number of micro batches in an epoch."""
        return self.steps * self.dealing.micro_batches

    def __getitem__(self, number: int) -> dict[str, Any]:
        step, index = divmod(number, self.dealing.micro_batches)
        epoch, step = divmod(step, self.steps)
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = epoch_order(len(self.rows), self.seed + epoch, self.lengths, self.dealing.batch.size)
        part = self.dealing.parts(self.dealing.batch.span(step, len(self.rows)), self.rank)[index]
        return {**self.collate([self.rows[self.order[position]] for position in part.positions]), WEIGHT: part.weight}


class EpochSampler(Sampler[int]):
    """A sampler of the numbers of an epoch's micro batches."""

    def __init__(self, micros: Micros) -> None:
        self.size, self.epoch = len(micros), 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        yield from range(self.epoch * self.size, (self.epoch + 1) * self.size)


def weighted(loss: torch.Tensor, weight: Fraction) -> torch.Tensor:
    """Return the weighted loss; dividing by an integer is exactly what gradient accumulation does elsewhere."""
    return loss * weight.numerator / weight.denominator
