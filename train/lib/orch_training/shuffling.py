"""The order of the training data, which depends only on seed and epoch, and each step's examples.

Other samplers use the global random state, which differs between one rank and two, and between a new and a resumed
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from orch_training.global_batch import Dealing

POOL = 50  # batches: as in transformers' LengthGroupedSampler
WEIGHT = "weight"  # the key of a micro batch's weight, a Fraction, beside its tensors


@dataclass(frozen=True)
class Grouping:
    """Groups rows of similar length in global batches of `batch` rows.

    This needs less padding, and no rank waits for another with longer rows.
    """

    lengths: Sequence[int]
    batch: int

    def arranged(self, order: list[int], generator: torch.Generator) -> list[int]:
        """Return `order` sorted by length within pools of POOL batches, with the batches shuffled.

        Rows that do not fill a batch stay at the end.
        """
        whole = len(order) // self.batch * self.batch
        pool = POOL * self.batch
        rows = [
            row
            for first in range(0, whole, pool)
            for row in sorted(order[first : min(first + pool, whole)], key=self.lengths.__getitem__)
        ]
        firsts = torch.randperm(whole // self.batch, generator=generator).tolist()
        batches = (rows[index * self.batch : (index + 1) * self.batch] for index in firsts)
        return [*(row for batch in batches for row in batch), *order[whole:]]


class EpochSampler(Sampler[int]):
    """A sampler with the same permutation on all ranks."""

    def __init__(self, size: int, seed: int, grouping: Grouping | None = None) -> None:
        self.size = size
        self.seed = seed
        self.grouping = grouping
        self.epoch = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.size, generator=generator).tolist()
        yield from self.grouping.arranged(order, generator) if self.grouping else order


Micro: TypeAlias = tuple[list[int], Fraction]  # the row numbers and the weight of a micro batch


class Micros(Sampler[list[Micro]]):
    """A sampler of one rank's micro batches of an epoch, from step `first` on."""

    def __init__(self, order: EpochSampler, dealing: Dealing, rank: int) -> None:
        self.order, self.dealing, self.rank = order, dealing, rank
        self.first = 0

    @property
    def steps(self) -> int:
        return self.dealing.batch.steps(len(self.order))

    def __len__(self) -> int:
        return (self.steps - self.first) * self.dealing.micro_batches

    def __iter__(self) -> Iterator[list[Micro]]:
        order = list(self.order)
        for step in range(self.first, self.steps):
            span = self.dealing.batch.span(step, len(order))
            for part in self.dealing.parts(span, self.rank):
                yield [([order[position] for position in part.positions], part.weight)]


class Rows(Dataset[tuple[list[Any], Fraction]]):
    """A dataset that returns the rows of a whole micro batch at once."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, micro: Micro) -> tuple[list[Any], Fraction]:
        numbers, weight = micro
        return [self.rows[number] for number in numbers], weight


def collate_weighted(
    collate: Callable[[list[Any]], dict[str, Any]], micros: list[tuple[list[Any], Fraction]]
) -> dict[str, Any]:
    """Collate a micro batch and add its weight to its tensors."""
    ((rows, weight),) = micros
    return {**collate(rows), WEIGHT: weight}


def loader(
    rows: Sequence[Any], micros: Micros, collate: Callable[[list[Any]], dict[str, Any]], **settings: Any
) -> DataLoader[Any]:
    """Return a DataLoader; `settings` are its own."""
    return DataLoader(Rows(rows), batch_sampler=micros, collate_fn=partial(collate_weighted, collate), **settings)


def weighted(loss: torch.Tensor, weight: Fraction) -> torch.Tensor:
    """Return the weighted loss; dividing by an integer is exactly what gradient accumulation does elsewhere."""
    return loss * weight.numerator / weight.denominator
