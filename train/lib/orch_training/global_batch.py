"""The examples of a step, and each rank's share of them, without torch.

The global batch is planned once, as (micro batch of a rank) x (ranks) x (accumulation). It stays the same however many
ranks compute it after a restart: they divide its examples among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from orch_training import RecipeError


@dataclass(frozen=True)
class GlobalBatch:
    """The examples of one optimizer step.

    Attributes:
        at_once: how many examples all planned ranks compute at once.
        rounds: how often they do so per step.
    """

    at_once: int
    rounds: int

    @property
    def size(self) -> int:
        return self.at_once * self.rounds

    @property
    def facts(self) -> dict[str, int]:
        """Return the batch as stored in a checkpoint's manifest."""
        return {"global_batch": self.size, "accumulation": self.rounds}

    def steps(self, examples: int) -> int:
        """Return the steps of an epoch.

        Examples that do not fill a round are omitted; the last step may have fewer rounds.
        """
        return -(-(examples // self.at_once) // self.rounds)

    def span(self, step: int, examples: int) -> range:
        """Return the positions of a step's examples in the order of its epoch, whose first step is 0."""
        end = examples // self.at_once * self.at_once
        return range(step * self.size, min((step + 1) * self.size, end))

    def check_filled(self, examples: int, noun: str) -> None:
        """Raise RecipeError if the data is less than all planned ranks compute at once."""
        if examples < self.at_once:
            raise RecipeError(
                f"the training data has {examples} {noun}; one batch over all ranks needs "
                f"{self.at_once}. Use a smaller --per_device_train_batch_size or fewer ranks."
            )


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
