"""The order of the training data, which depends only on seed and epoch, and each rank's micro batches.

Other samplers use the global random state, which differs between one rank and two, and between a new and a resumed
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from orch_training import ranks
from orch_training.global_batch import Dealing

POOL = 50  # batches: as in transformers' LengthGroupedSampler
WEIGHT = "weight"  # the key of a micro batch's weight, a Fraction, beside its tensors


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


class Micros(Dataset[dict[str, Any]]):
    """The micro batches of this rank, numbered through all epochs, each with its weight.

    Args:
        rows: of the data.
        collate: makes a batch of rows.
        dealing: the division of the global batch among the ranks.
        seed: of the order of the first epoch.
        lengths: of the rows, to group rows of similar length.
    """

    def __init__(
        self,
        rows: Sequence[Any],
        collate: Callable[[list[Any]], dict[str, Any]],
        dealing: Dealing,
        seed: int,
        lengths: Sequence[int] = (),
    ) -> None:
        self.rows, self.collate, self.dealing, self.seed, self.lengths = rows, collate, dealing, seed, lengths
        self.rank = ranks.rank()
        self.steps = dealing.batch.steps(len(rows))  # of an epoch
        self.epoch, self.order = -1, [0]

    def __len__(self) -> int:
        """Return the number of micro batches in an epoch."""
        return self.steps * self.dealing.micro_batches

    def __getitem__(self, number: int) -> dict[str, Any]:
        step, index = divmod(number, self.dealing.micro_batches)
        epoch, step = divmod(step, self.steps)
        if epoch != self.epoch:
            size = len(self.rows)
            self.epoch = epoch
            self.order = epoch_order(size, self.seed + epoch, self.lengths, self.dealing.batch.size)
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
