"""Prepare the data of a run from a small text, with the run's tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "bert_data"))

from batches import Sequences
from data_config import DataOptions
from orch_training import ranks
from orch_training.errors import RecipeError
from prepare import prepare, vocabulary_hash
from pretrain_config import PretrainArguments

SHARDS_OF_A_TEXT = 8
PREDICTIONS = 0.15625  # largest share of a sequence's tokens: 20 of 128, 80 of 512


def prepared(args: PretrainArguments) -> Path:
    """Prepare the text below the run's output folder and return the folder of the data.

    Raises:
        RecipeError: if there is no such text file.
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
            raise RecipeError(f"there is no file {options.inputs[0]}.", code=2)
    prepare(options)
    return target


def check_vocabulary(data: Sequence[Sequences], tokenizer: Any, data_dir: Path) -> None:
    """Check that the data was prepared with this tokenizer.

    Raises:
        RecipeError: if it was prepared with another one.
    """
    vocabulary = vocabulary_hash(tokenizer)
    if any(sequences.vocabulary != vocabulary for sequences in data):
        raise RecipeError(f"{data_dir} was prepared with another tokenizer.")
