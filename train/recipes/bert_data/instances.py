"""Turn documents into masked pairs of segments, as BERT's create_pretraining_data.py does.

The method is that of Devlin et al. 2018, appendix A.2: segments A and B fill a sequence; in half of
the pairs B is from another document; 15 % of the tokens are predicted, of which 80 % are masked,
10 % are replaced by a random token and 10 % stay unchanged.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Tokens = list[int]
Document = list[Tokens]  # sentences as token ids
END = re.compile(r"(?<=[.!?])[\"')\]\u201d\u2019]*\s+(?=[\"'(\[\u201c\u2018]*[A-Z0-9\u00c0-\u00de])")
SHORT = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|No|vs|etc|e\.g|i\.e|cf|ca|Jr|Sr|Gen|Col|Capt|Lt|Rev|Inc|Ltd|"
    r"Co|Corp|Fig|Vol|pp|approx)|\b[A-Z])\.$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """The settings for dividing documents into sequences and masking them.

    Attributes:
        cls: the token that begins a sequence.
        sep: the token that ends a segment.
        mask: the token in the place of a masked one.
        ordinary: all tokens that are not special.
        length: the tokens of a sequence, including three special tokens.
        predictions: the highest number of tokens to predict in a sequence.
        masked_lm_prob: the share of the tokens to predict.
        short_seq_prob: the share of sequences that are deliberately shorter.
    """

    cls: int
    sep: int
    mask: int
    ordinary: tuple[int, ...]
    length: int
    predictions: int
    masked_lm_prob: float
    short_seq_prob: float


def instances(documents: Sequence[Document], masking: Masking, rng: random.Random) -> list[dict[str, Any]]:
    """Return the rows of the data from all documents."""
    return [
        masked(first, second, is_random, masking, rng)
        for index in range(len(documents))
        for first, second, is_random in pairs(documents, index, masking, rng)
    ]


def pairs(
    documents: Sequence[Document], index: int, masking: Masking, rng: random.Random
) -> list[tuple[Tokens, Tokens, bool]]:
    """Divide a document into pairs of segments.

    Returns:
        For each pair, segment A, segment B, and whether B is from another document.
    """
    segment_pairs, room = [], masking.length - 3
    document, start = documents[index], 0
    while start < len(document):
        # Some pairs are shorter, because fine-tuning meets short texts.
        target = rng.randint(2, room) if rng.random() < masking.short_seq_prob else room
        lengths = itertools.accumulate(len(document[position]) for position in range(start, len(document)))
        sizes = (number for number, length in enumerate(lengths, start=1) if length >= target)
        size = next(sizes, len(document) - start)
        split = start + (rng.randint(1, size - 1) if size > 1 else 1)
        first = list(itertools.chain(*document[start:split]))
        is_random = size == 1 or rng.random() < 0.5
        if is_random:
            second = elsewhere(documents, index, target - len(first), rng)
        else:
            second = list(itertools.chain(*document[split : start + size]))
        start = split if is_random else start + size
        while len(first) + len(second) > room:  # shorten the longer segment, at its front or end
            del (first if len(first) > len(second) else second)[0 if rng.random() < 0.5 else -1]
        if first and second:
            segment_pairs.append((first, second, is_random))
    return segment_pairs


def elsewhere(documents: Sequence[Document], index: int, length: int, rng: random.Random) -> Tokens:
    """Return about `length` tokens from a random position of another document, if there is one."""
    candidates = [i for i in (rng.randrange(len(documents)) for _ in range(10)) if i != index]
    document = documents[candidates[0] if candidates else index]
    tokens: Tokens = []
    for position in range(rng.randrange(len(document)), len(document)):
        tokens += document[position]
        if len(tokens) >= length:
            break
    return tokens


def masked(first: Tokens, second: Tokens, is_random: bool, masking: Masking, rng: random.Random) -> dict[str, Any]:
    """Return a masked pair as a row of the data; see prepare.SCHEMA."""
    ids = [masking.cls, *first, masking.sep, *second, masking.sep]
    maskable_positions = [*range(1, len(first) + 1), *range(len(first) + 2, len(ids) - 1)]
    count = min(masking.predictions, max(1, round(len(ids) * masking.masked_lm_prob)), len(maskable_positions))
    positions = sorted(rng.sample(maskable_positions, count))
    labels = [ids[position] for position in positions]
    for position in positions:
        replacements = (masking.mask, ids[position], rng.choice(masking.ordinary))
        ids[position] = rng.choices(replacements, weights=(0.8, 0.1, 0.1))[0]
    return {
        "input_ids": ids,
        "first_segment": len(first) + 2,
        "is_random_next": is_random,
        "positions": positions,
        "labels": labels,
    }


def sentences(text: str) -> list[str]:
    """Split a text into sentences.

    The end of a line always ends a sentence. A full stop ends one unless it marks an abbreviation
    or an initial.
    """
    parts: list[str] = []
    for line in map(str.strip, text.splitlines()):
        start = 0
        for match in END.finditer(line):
            part = line[start : match.end()].rstrip()
            if not SHORT.search(part):
                parts.append(part)
                start = match.end()
        parts.append(line[start:])
    return list(filter(None, parts))
