"""Pairs of sentences with a label: from TSV files or from the hub, as text and as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mrpc_config import PairArguments
from orch_training.errors import RecipeError
from orch_training.hub import hub_rows

# Our columns, and those of the files that Microsoft and GLUE give out.
COLUMNS = (("label", "sentence1", "sentence2"), ("Quality", "#1 String", "#2 String"))
LENGTH_MULTIPLE = 16  # few different shapes need less memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """`label`: 1 if the second sentence says what the first one does, else 0."""

    label: int
    sentence1: str
    sentence2: str


def load_pairs(args: PairArguments, split: str) -> list[Pair]:
    """`split`: train or validation."""
    if args.dataset_name:
        rows = hub_rows(args.dataset_name, args.dataset_config_name, split)
        return [pair_of(row, COLUMNS[0], f"{args.dataset_name} ({split})") for row in rows]
    return read_tsv(Path(str(args.train_file if split == "train" else args.validation_file)))


def read_tsv(path: Path) -> list[Pair]:
    """Fields are not quoted: a quotation mark is part of its sentence, as in MRPC."""
    try:
        header, *lines = path.read_text(encoding="utf-8-sig").splitlines() or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: {error}.") from error
    names = header.split("\t")
    columns = next((known for known in COLUMNS if set(known) <= set(names)), None)
    if columns is None:
        raise RecipeError(f"{path}, line 1: expected the columns {', '.join(COLUMNS[0])}.")
    pairs = []
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t")
        if len(fields) != len(names):
            raise RecipeError(f"{path}, line {number}: {len(fields)} fields, not {len(names)}.")
        row = dict(zip(names, fields, strict=True))
        pairs.append(pair_of(row, columns, f"{path}, line {number}"))
    if not pairs:
        raise RecipeError(f"{path} has no pairs.")
    return pairs


def pair_of(row: Mapping[str, Any], columns: Sequence[str], where: str) -> Pair:
    label, first, second = (row.get(name) for name in columns)
    if str(label) not in ("0", "1"):
        raise RecipeError(f"{where}: the label is {label!r}, not 0 or 1.")
    if not first or not second:
        raise RecipeError(f"{where}: a sentence is missing.")
    return Pair(label=int(str(label)), sentence1=str(first), sentence2=str(second))


def tokenized(pairs: Sequence[Pair], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    rows = tokenizer(
        [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs], truncation=True, max_length=max_length
    )
    return [{**{name: rows[name][index] for name in rows}, "labels": pair.label} for index, pair in enumerate(pairs)]


class Collator:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        inputs = [{k: v for k, v in row.items() if k != "labels"} for row in rows]
        batch = self.tokenizer.pad(inputs, pad_to_multiple_of=LENGTH_MULTIPLE, return_tensors="pt")
        return {**batch, "labels": torch.tensor([row["labels"] for row in rows])}
