"""Prepare the data of a small text, and read batches in an order that depends only on the seed and the position.

Every rank can read any shard and selects its rows. Decoding is cheap compared with training, so
training takes the same course with any number of ranks and can resume at any step.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "bert_data"))

import pyarrow.parquet as pq
import torch
from orch_training import ArgumentError, RecipeError, ranks
from prepare import DataOptions, prepare, vocabulary_hash
from pretrain_config import PretrainArguments

SHARDS_OF_A_TEXT = 8
PREDICTIONS = 0.15625  # largest share of a sequence's tokens: 20 of 128, 80 of 512
SHARDS_IN_MEMORY = 3
LENGTH_MULTIPLE = 64  # fewer distinct shapes need less memory


def prepared(args: PretrainArguments) -> Path:
    """Prepare the text below the run's output folder and return the folder of the data.

    Raises:
        ArgumentError: if there is no such text file.
    """
    target = Path(args.output_dir) / "data"
    lengths = sorted({args.max_seq_length, args.max_seq_length_phase2})  # for both phases, whichever runs
    options = DataOptions(
        input_file=args.text_file,
        data_dir=str(target),
        output_dir=args.output_dir,
        tokenizer_name=args.tokenizer_name,
        lengths=",".join(f"{n}:{round(n * PREDICTIONS)}" for n in lengths),
        shards=SHARDS_OF_A_TEXT,
        seed=args.seed,
    )
    with ranks.raise_together():
        if not options.inputs[0].is_file():
            raise ArgumentError(f"there is no file {options.inputs[0]}.")
    prepare(options)
    return target


class Sequences:
    """The rows of a data set such as seq128, each once per epoch."""

    def __init__(self, data_dir: Path, length: int, seed: int, tokenizer: Any) -> None:
        manifest = manifest_of(data_dir)
        name = f"seq{length}"
        if name not in manifest["sets"]:
            raise RecipeError(f"{data_dir} has no sequences of {length} tokens, only {', '.join(manifest['sets'])}.")
        if manifest["vocabulary"] != vocabulary_hash(tokenizer):
            raise RecipeError(f"{data_dir} was prepared with another tokenizer.")
        self.rows: dict[str, int] = manifest["sets"][name]["rows"]
        self.folder, self.seed, self.length = data_dir / name, seed, length
        self.total = sum(self.rows.values())
        self.order = functools.lru_cache(maxsize=2)(self._order)
        self.shard = functools.lru_cache(maxsize=SHARDS_IN_MEMORY)(self._shard)

    def row(self, position: int) -> dict[str, Any]:
        """Return the row at a position, which counts on across epochs."""
        epoch, offset = divmod(position, self.total)
        names, ends = self.order(epoch)
        index = bisect.bisect_right(ends, offset)
        table, row_order = self.shard(epoch, names[index])
        start = ends[index - 1] if index else 0
        return dict(table.slice(row_order[offset - start], 1).to_pylist()[0])

    def _order(self, epoch: int) -> tuple[list[str], list[int]]:
        """Return the shards of an epoch in order, and the positions at which they end."""
        names = sorted(self.rows)
        random.Random(f"{self.seed} {epoch}").shuffle(names)
        return names, list(itertools.accumulate(self.rows[name] for name in names))

    def _shard(self, epoch: int, name: str) -> tuple[Any, list[int]]:
        """Return the table of a shard and the order of its rows in an epoch."""
        row_order = list(range(self.rows[name]))
        random.Random(f"{self.seed} {epoch} {name}").shuffle(row_order)
        return pq.read_table(self.folder / name), row_order

    def batch(self, start: int, count: int) -> dict[str, Any]:
        """Return `count` rows from position `start` on as a batch."""
        return collate([self.row(position) for position in range(start, start + count)])


def manifest_of(data_dir: Path) -> dict[str, Any]:
    """Read the manifest of prepared data.

    Raises:
        RecipeError: if there is none.
    """
    try:
        return dict(json.loads((data_dir / "manifest.json").read_text()))
    except (OSError, ValueError):
        raise RecipeError(f"{data_dir} holds no prepared data; `orch data prepare` makes it.") from None


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Pad rows into a batch of tensors.

    In the batch, `masked` has the positions of the masked tokens in the flattened batch, and
    `labels` the original tokens at these positions.
    """
    longest = max(len(row["input_ids"]) for row in rows)
    width = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    shape = (len(rows), width)
    input_ids, segments, attention_mask = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    masked: list[int] = []
    for index, row in enumerate(rows):
        size = len(row["input_ids"])
        input_ids[index, :size] = torch.tensor(row["input_ids"])
        segments[index, row["first_segment"] : size] = 1
        attention_mask[index, :size] = 1
        masked += [index * width + position for position in row["positions"]]
    return {
        "input_ids": input_ids,
        "token_type_ids": segments,
        "attention_mask": attention_mask,
        "masked": torch.tensor(masked),
        "labels": torch.tensor([label for row in rows for label in row["labels"]]),
        "is_random_next": torch.tensor([int(row["is_random_next"]) for row in rows]),
    }
