"""Prepare the data of a small text, and read batches in an order that depends only on the seed and the position.

Every rank can read any shard and selects its rows. Decoding is cheap compared with training, so
training takes the same course with any number of ranks and can resume at any step.
"""

from __future__ import annotations

import functools
import random
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "bert_data"))

import pyarrow.parquet as pq
import torch
from orch_training import ArgumentError, RecipeError, checkpoint, ranks
from prepare import MANIFEST, DataOptions, prepare, vocabulary_hash
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
        self.shard = functools.lru_cache(maxsize=SHARDS_IN_MEMORY)(self._shard)

    def batch(self, start: int, count: int) -> dict[str, Any]:
        """Return `count` rows from a position on, which counts on across epochs, as a batch."""
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            epoch, offset = divmod(start + len(rows), self.total)
            names = sorted(self.rows)
            random.Random(f"{self.seed} {epoch}").shuffle(names)
            for name in names:
                if offset < self.rows[name]:
                    rows += self.shard(epoch, name).slice(offset, count - len(rows)).to_pylist()
                    break
                offset -= self.rows[name]
        return collate(rows)

    def _shard(self, epoch: int, name: str) -> Any:
        """Return the table of a shard with its rows in the order of an epoch."""
        row_order = list(range(self.rows[name]))
        random.Random(f"{self.seed} {epoch} {name}").shuffle(row_order)
        return pq.read_table(self.folder / name).take(row_order)


def manifest_of(data_dir: Path) -> dict[str, Any]:
    """Read the manifest of prepared data.

    Raises:
        RecipeError: if there is none.
    """
    manifest = checkpoint.read_json(data_dir / MANIFEST)
    if manifest is None:
        raise RecipeError(f"{data_dir} holds no prepared data; `orch data prepare` makes it.")
    return manifest


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Pad rows into a batch of tensors.

    In the batch, `masked` has the positions of the masked tokens in the flattened batch, and
    `labels` the original tokens at these positions.
    """
    sizes = torch.tensor([len(row["input_ids"]) for row in rows])
    width = -(-int(sizes.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    is_token = torch.arange(width) < sizes[:, None]
    is_second = is_token & (torch.arange(width) >= torch.tensor([row["first_segment"] for row in rows])[:, None])
    masked = [index * width + position for index, row in enumerate(rows) for position in row["positions"]]
    return {
        "input_ids": torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows]),
        "token_type_ids": is_second.long(),
        "attention_mask": is_token.long(),
        "masked": torch.tensor(masked),
        "labels": torch.tensor([label for row in rows for label in row["labels"]]),
        "is_random_next": torch.tensor([int(row["is_random_next"]) for row in rows]),
    }
