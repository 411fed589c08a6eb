"""Load and tokenize labelled pairs of sentences from TSV files or from the hub, and score a model on them.

Accuracy and F1 are in percent; the pairs are divided among the ranks.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from orch_training import RecipeError, ranks
from orch_training.arguments import DataSetArguments
from orch_training.models import hub_rows
from orch_training.script import score_in_batches
from transformers import DataCollatorWithPadding

# The columns of this recipe, and those of the files that Microsoft and GLUE distribute.
COLUMNS = (("label", "sentence1", "sentence2"), ("Quality", "#1 String", "#2 String"))


class Pair(NamedTuple):
    """Two sentences, with label 1 if they mean the same and 0 otherwise."""

    label: int
    sentence1: str
    sentence2: str


def load_rows(data: DataSetArguments, split: str, tokenizer: Any, length: int) -> list[dict[str, Any]]:
    """Load the pairs of a split, `train` or `validation`, as tokens."""
    is_training = split == "train"
    limit = data.max_train_samples if is_training else data.max_eval_samples
    if data.dataset_name:
        rows = hub_rows(data.dataset_name, data.dataset_config_name, split)
        sentence_pairs = [pair_of(row, COLUMNS[0], f"{data.dataset_name} ({split})") for row in rows]
    else:
        sentence_pairs = read_tsv(Path(str(data.train_file if is_training else data.validation_file)))
    labels, *texts = map(list, zip(*sentence_pairs[:limit], strict=True))
    encoded = tokenizer(*texts, truncation=True, max_length=length)
    return [{**{name: encoded[name][index] for name in encoded}, "labels": label} for index, label in enumerate(labels)]


def read_tsv(path: Path) -> list[Pair]:
    """Read pairs from a TSV file without quoting.

    A quotation mark is part of its sentence, as in MRPC.

    Raises:
        RecipeError: if the file cannot be read, or a line is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: {error}.") from error
    # splitlines() would also split at U+2028 and similar characters, which sentences may contain
    rows = csv.DictReader(text.split("\n"), delimiter="\t", quoting=csv.QUOTE_NONE)
    names = rows.fieldnames or ()
    columns = next((expected_columns for expected_columns in COLUMNS if set(expected_columns) <= set(names)), None)
    if columns is None:
        raise RecipeError(f"{path}, line 1: expected the columns {', '.join(COLUMNS[0])}, separated by tabs.")
    sentence_pairs = []
    for row in rows:
        location = f"{path}, line {rows.line_num}"
        if None in (*row, *row.values()):
            raise RecipeError(f"{location}: expected {len(names)} fields, separated by tabs.")
        sentence_pairs.append(pair_of(row, columns, location))
    if not sentence_pairs:
        raise RecipeError(f"{path} has no pairs.")
    return sentence_pairs


def pair_of(row: Mapping[str, Any], columns: Sequence[str], location: str) -> Pair:
    """Return the pair in a row.

    Raises:
        RecipeError: if the label is invalid, or a sentence is missing.
    """
    label, first, second = (row.get(name) for name in columns)
    if str(label) not in ("0", "1"):
        raise RecipeError(f"{location}: the label is {label!r}, not 0 or 1.")
    if not first or not second:
        raise RecipeError(f"{location}: a sentence is missing.")
    return Pair(label=int(str(label)), sentence1=str(first), sentence2=str(second))


def evaluate(
    args: Any, model: Any, rows: Sequence[dict[str, Any]], collate: DataCollatorWithPadding, phase: str
) -> tuple[dict[str, float], float]:
    """Return the scores of a model, which must not be wrapped in DDP, and the pairs per second.

    Args:
        args: have per_device_eval_batch_size and bf16.
        model: the model.
        rows: the pairs of all ranks as tokens.
        collate: makes a batch of rows.
        phase: the name under which progress is reported.
    """
    start = time.perf_counter()

    def judge(part: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int]]:
        batch = collate(part)
        labels = batch.pop("labels").tolist()
        return zip(model(**batch).logits.argmax(dim=-1).tolist(), labels, strict=True)

    local_rows = sorted(rows[ranks.rank() :: ranks.world_size()], key=lambda row: len(row["input_ids"]))
    judged = ranks.gather(score_in_batches(args, model, local_rows, judge, phase))
    scores = ranks.from_main(score([labels for part in judged for labels in part]) if ranks.is_main() else None)
    return dict(scores), len(rows) / (time.perf_counter() - start)


def score(judged: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return the scores that GLUE defines for MRPC; F1 is that of label 1."""
    # Slow to import, and only rank 0 needs it.
    from torchmetrics.functional.classification import binary_accuracy, binary_f1_score

    predicted, expected = (torch.tensor(values) for values in zip(*judged, strict=True))
    return {
        "accuracy": 100 * float(binary_accuracy(predicted, expected)),
        "f1": 100 * float(binary_f1_score(predicted, expected)),
    }
