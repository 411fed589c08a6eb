"""Documents -> masked pairs of segments, as BERT's create_pretraining_data.py makes them.

The method is that of Devlin et al. 2018, appendix A.2: segments A and B fill a sequence; in half of
the pairs B is from another document; 15 % of the tokens are predicted, of which 80 % are masked,
10 % replaced by any other and 10 % left as they are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Tokens = list[int]
Document = list[Tokens]  # sentences as token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What has to be known of a vocabulary."""

    cls: int
    sep: int
    mask: int
    ordinary: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """`length` in tokens, the three special ones included; at most `predictions` are masked."""

    length: int
    predictions: int
    masked_lm_prob: float
    short_seq_prob: float


def instances(documents: Sequence[Document], words: Words, recipe: Recipe, rng: random.Random) -> list[dict[str, Any]]:
    return [
        masked(first, second, is_random, words, recipe, rng)
        for index in range(len(documents))
        for first, second, is_random in pairs(documents, index, recipe, rng)
    ]


def pairs(
    documents: Sequence[Document], index: int, recipe: Recipe, rng: random.Random
) -> list[tuple[Tokens, Tokens, bool]]:
    """(segment A, segment B, whether B is from elsewhere) over one document."""
    document, made = documents[index], []
    room = recipe.length - 3
    target = wanted_length(room, recipe, rng)
    chunk: list[Tokens] = []
    at = 0
    while at < len(document):
        chunk.append(document[at])
        if at == len(document) - 1 or sum(map(len, chunk)) >= target:
            split = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            first = join(chunk[:split])
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                second = elsewhere(documents, index, target - len(first), rng)
                at -= len(chunk) - split  # what was not used is gone through again
            else:
                second = join(chunk[split:])
            cut(first, second, room, rng)
            if first and second:
                made.append((first, second, is_random))
            chunk, target = [], wanted_length(room, recipe, rng)
        at += 1
    return made


def wanted_length(room: int, recipe: Recipe, rng: random.Random) -> int:
    """Mostly all the room; sometimes less, so that fine-tuning on short texts is no surprise."""
    return rng.randint(2, room) if rng.random() < recipe.short_seq_prob else room


def elsewhere(documents: Sequence[Document], index: int, wanted: int, rng: random.Random) -> Tokens:
    """About `wanted` tokens from a random place of another document, if there is another one."""
    others = [i for i in (rng.randrange(len(documents)) for _ in range(10)) if i != index]
    document = documents[others[0] if others else index]
    tokens: Tokens = []
    for sentence in document[rng.randrange(len(document)) :]:
        tokens += sentence
        if len(tokens) >= wanted:
            break
    return tokens


def cut(first: Tokens, second: Tokens, room: int, rng: random.Random) -> None:
    """Shorten the longer one, at its front or its end, until both fit."""
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        del longer[0 if rng.random() < 0.5 else -1]


def join(chunk: Sequence[Tokens]) -> Tokens:
    return [token for sentence in chunk for token in sentence]


def masked(
    first: Tokens, second: Tokens, is_random: bool, words: Words, recipe: Recipe, rng: random.Random
) -> dict[str, Any]:
    """One row of the data: see shards.SCHEMA."""
    ids = [words.cls, *first, words.sep, *second, words.sep]
    places = [*range(1, len(first) + 1), *range(len(first) + 2, len(ids) - 1)]
    count = min(recipe.predictions, max(1, round(len(ids) * recipe.masked_lm_prob)), len(places))
    positions = sorted(rng.sample(places, count))
    labels = [ids[position] for position in positions]
    for position in positions:
        ids[position] = replacement(ids[position], words, rng)
    return {
        "input_ids": ids,
        "first_segment": len(first) + 2,
        "is_random_next": is_random,
        "positions": positions,
        "labels": labels,
    }


def replacement(token: int, words: Words, rng: random.Random) -> int:
    chance = rng.random()
    if chance < 0.8:
        return words.mask
    return token if chance < 0.9 else rng.choice(words.ordinary)
