"""Batches from Parquet shards, in an order that depends on seed and position alone.

Every rank can read any shard and takes its own rows of it: decoding is cheap beside training, and
so the course is the same for any number of ranks, and can be taken up at any step.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from orch_training.errors import RecipeError

SHARDS_IN_MEMORY = 3
LENGTH_MULTIPLE = 64  # few different shapes need less memory


class Sequences:
    """The rows of one data set, such as seq128, once in each epoch."""

    def __init__(self, data_dir: Path, length: int, seed: int) -> None:
        manifest = manifest_of(data_dir)
        name = f"seq{length}"
        if name not in manifest["sets"]:
            raise RecipeError(f"{data_dir} has no sequences of {length} tokens, only {', '.join(manifest['sets'])}.")
        self.vocabulary: str = manifest["vocabulary"]
        self.rows: dict[str, int] = manifest["sets"][name]["rows"]
        self.folder, self.seed, self.length = data_dir / name, seed, length
        self.total = sum(self.rows.values())
        self.order = functools.lru_cache(maxsize=2)(self._order)
        self.shard = functools.lru_cache(maxsize=SHARDS_IN_MEMORY)(self._shard)

    def row(self, position: int) -> dict[str, Any]:
        """Positions go on over the epochs."""
        epoch, within = divmod(position, self.total)
        names, ends = self.order(epoch)
        index = bisect.bisect_right(ends, within)
        table, places = self.shard(epoch, names[index])
        start = ends[index - 1] if index else 0
        return dict(table.slice(places[within - start], 1).to_pylist()[0])

    def _order(self, epoch: int) -> tuple[list[str], list[int]]:
        """The shards of an epoch, and the positions at which they end."""
        names = sorted(self.rows)
        random.Random(f"{self.seed} {epoch}").shuffle(names)
        return names, list(itertools.accumulate(self.rows[name] for name in names))

    def _shard(self, epoch: int, name: str) -> tuple[Any, list[int]]:
        places = list(range(self.rows[name]))
        random.Random(f"{self.seed} {epoch} {name}").shuffle(places)
        return pq.read_table(self.folder / name), places

    def batch(self, start: int, count: int) -> dict[str, Any]:
        return collate([self.row(position) for position in range(start, start + count)])


def manifest_of(data_dir: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((data_dir / "manifest.json").read_text()))
    except (OSError, ValueError):
        raise RecipeError(f"{data_dir} holds no prepared data; `orch data prepare` makes it.") from None


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """`masked`: places in the flattened batch; `labels`: the tokens that stood there."""
    longest = max(len(row["input_ids"]) for row in rows)
    width = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    shape = (len(rows), width)
    ids, kinds, real = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    masked: list[int] = []
    for index, row in enumerate(rows):
        size = len(row["input_ids"])
        ids[index, :size] = torch.tensor(row["input_ids"])
        kinds[index, row["first_segment"] : size] = 1
        real[index, :size] = 1
        masked += [index * width + position for position in row["positions"]]
    return {
        "input_ids": ids,
        "token_type_ids": kinds,
        "attention_mask": real,
        "masked": torch.tensor(masked),
        "labels": torch.tensor([label for row in rows for label in row["labels"]]),
        "is_random_next": torch.tensor([int(row["is_random_next"]) for row in rows]),
    }
