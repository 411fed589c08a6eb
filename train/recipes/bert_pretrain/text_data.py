"""The data of a run: prepared from a small text, and by the tokenizer of the run."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "bert_data"))

from batches import Sequences
from data_config import DataOptions
from orch_training import ranks
from orch_training.errors import RecipeError
from prepare import prepare
from pretrain_config import PretrainArguments

SHARDS_OF_A_TEXT = 8
PREDICTIONS = 0.15625  # of a sequence's tokens, at most: 20 of 128, 80 of 512


def prepared(args: PretrainArguments) -> Path:
    """A small text, prepared where the run writes its own files."""
    target = Path(args.output_dir) / "data"
    lengths = sorted({args.max_seq_length, args.max_seq_length_phase2})  # whichever phase runs
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
    words = json.dumps(sorted(tokenizer.get_vocab().items())).encode()
    if any(found.vocabulary != hashlib.sha256(words).hexdigest() for found in data):
        raise RecipeError(f"{data_dir} was prepared with another tokenizer.")
