"""What one step trains on, and each rank's part of it: values, without torch.

The global batch is planned once, as (micro batch of a rank) x (ranks) x (accumulation). It stays
what it is however many ranks compute it after a restart: they deal its examples out among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class GlobalBatch:
    """`at_once`: examples that all ranks, as planned, compute at once; `rounds`: how often they do
    so for one step."""

    at_once: int
    rounds: int

    @property
    def size(self) -> int:
        return self.at_once * self.rounds

    @property
    def facts(self) -> dict[str, int]:
        """As a checkpoint's manifest has them."""
        return {"global_batch": self.size, "accumulation": self.rounds}

    def steps(self, examples: int) -> int:
        """Of an epoch. Examples that fill no round are left out; the last step may have fewer
        rounds than the others."""
        return -(-(examples // self.at_once) // self.rounds)

    def span(self, step: int, examples: int) -> range:
        """What a step trains on: positions in the order of its epoch, whose first step is 0."""
        end = examples // self.at_once * self.at_once
        return range(step * self.size, min((step + 1) * self.size, end))


@dataclass(frozen=True)
class Part:
    """One micro batch of one rank. `weight` is that of its mean loss: the gradients of a rank's
    micro batches are summed, those of the ranks averaged."""

    positions: range
    weight: Fraction


@dataclass(frozen=True)
class Dealing:
    """`ranks` compute a global batch, in micro batches of at most `micro` examples."""

    batch: GlobalBatch
    ranks: int
    micro: int

    @property
    def micro_batches(self) -> int:
        """Of every rank, in every step."""
        return -(-self.batch.size // (self.ranks * self.micro))

    def parts(self, span: range, rank: int) -> list[Part]:
        """What a rank computes of a step: as equal as can be. Where there is nothing left for it,
        it computes one example whose weight is 0, so that no rank waits for another."""
        count = self.micro_batches * self.ranks
        found = []
        for number in range(rank, count, self.ranks):
            own = span[len(span) * number // count : len(span) * (number + 1) // count]
            found.append(Part(own or span[:1], Fraction(len(own) * self.ranks, len(span))))
        return found


def global_batch(*, micro: int, accumulation: int, planned: int, facts: Mapping[str, Any] | None) -> GlobalBatch:
    """Return the batch of the checkpoint with these facts, else that of the planned ranks."""
    if facts is None:
        return GlobalBatch(micro * planned, accumulation)
    rounds = int(facts["accumulation"])
    return GlobalBatch(int(facts["global_batch"]) // rounds, rounds)


def kept(dealing: Dealing, why: str) -> str:
    """The decision in words."""
    size, count, ranks = dealing.batch.size, dealing.micro_batches, dealing.ranks
    who = "1 rank computes" if ranks == 1 else f"each of {ranks} ranks computes"
    what = f"{count} micro batch" + ("es" if count > 1 else "")
    least, most = size // (ranks * count), -(-size // (ranks * count))
    sizes = f"{most}" if least == most else f"{least} to {most}, weighted"
    return f"the global batch stays {size} examples, {why}: {who} {what} of {sizes}"
