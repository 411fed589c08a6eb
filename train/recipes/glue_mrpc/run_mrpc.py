"""Fine-tune a model to detect paraphrases, on one or more ranks.

Follows accelerate's nlp_example: Accelerator, AdamW, a linear schedule with warm-up. Accuracy and F1 are in percent;
the pairs of an evaluation are divided among the ranks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

from orch_training import speed_up_imports

speed_up_imports()

import torch
from orch_training import RecipeError, arguments, kernels, ranks
from orch_training.arguments import DataSetArguments, LoopArguments, ModelArguments, neutral, option
from orch_training.batches import WEIGHT, Micros, weighted
from orch_training.loop import Loop, Phase, make_accelerator
from orch_training.models import hub_rows, load_model, load_tokenizer, sequence_length
from orch_training.provenance import FACT, provenance_of
from orch_training.resume import begin, prepare_output
from orch_training.script import run_script, score_in_batches, train_and_evaluate
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

LENGTH_MULTIPLE = 16  # fewer distinct shapes need less memory
Pair = tuple[int, str, str]  # two sentences, after the label 1 if they mean the same and 0 otherwise
# The columns of this recipe, and those of the files that Microsoft and GLUE distribute.
COLUMNS = (("label", "sentence1", "sentence2"), ("Quality", "#1 String", "#2 String"))


@dataclass
class MrpcArguments(LoopArguments, ModelArguments, DataSetArguments):
    """The arguments of the recipe."""

    max_seq_length: int = option(128, "Maximum length of a pair in tokens.")
    do_train: bool = neutral(True, "Train.")
    do_eval: bool = neutral(True, "Evaluate after training.")
    evaluate_before_training: bool = neutral(True, "Evaluate before training, too.")
    per_device_train_batch_size: int = neutral(8, "Pairs per rank and step.")
    per_device_eval_batch_size: int = neutral(32, "Pairs per rank.")
    gradient_accumulation_steps: int = neutral(1, "Batches per step.")
    learning_rate: float = option(1e-4, "Highest learning rate; it then falls linearly to 0.")
    weight_decay: float = option(0.01, "Weight decay of AdamW.")
    warmup_steps: int = option(10, "Steps in which the learning rate rises.")
    num_train_epochs: int = option(8, "Passes over the data.")
    max_steps: int | None = option(None, "Stop after this many steps instead.")
    optim: Literal["adamw_torch", "adamw_torch_fused"] = neutral("adamw_torch_fused", "Implementation of AdamW.")
    use_ipex: bool = neutral(False, "Use IPEX (accelerate before 1.8).")

    def requirements(self) -> list[tuple[bool, str]]:
        return [
            *arguments.task_requirements(self, self),
            (self.num_train_epochs < 1, "--num_train_epochs must be at least 1."),
            (self.max_steps is not None and self.max_steps < 1, "--max_steps must be at least 1."),
            *super().requirements(),
        ]


def run(args: MrpcArguments) -> None:
    """Train and evaluate a model, then save it and the results."""
    # ranks: accelerate joins them here unless they have joined already
    output_dir = Path(args.output_dir)
    args.optim = kernels.configure_ipex(args.use_ipex, args.optim)
    accelerator = make_accelerator(args)
    prepare_output(output_dir)

    # data, model
    with ranks.raise_together():
        tokenizer = load_tokenizer(args)
        model = load_model(AutoModelForSequenceClassification, args, args.seed)
        length = sequence_length(args.max_seq_length, tokenizer, model)
        training_rows = load_rows(args, "train", tokenizer, length) if args.do_train else []
        validation = load_rows(args, "validation", tokenizer, length) if args.do_eval else []
    provenance = provenance_of(__file__, args, {"training data": training_rows, "evaluation data": validation}, args)
    collate = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=LENGTH_MULTIPLE)

    # loop, save
    def train() -> dict[str, Any]:
        start, dealing = begin(args, provenance, len(training_rows), "pairs")
        lengths = [len(row["input_ids"]) for row in training_rows] if args.length_grouping else []
        micros = Micros(training_rows, collate, dealing, args.seed, lengths)
        steps = args.max_steps or args.num_train_epochs * micros.steps
        phase = LinearPhase("train", 0, steps, dealing.batch.size, args.learning_rate, args.warmup_steps)
        optimizer = kernels.adamw(model.parameters(), args.optim, lr=args.learning_rate, weight_decay=args.weight_decay)
        facts = {**dealing.batch.facts, FACT: provenance}
        return Training(args, accelerator, [phase], micros, optimizer, model=model, facts=facts).run(start, args.optim)

    train_and_evaluate(args, model, tokenizer, train, partial(evaluate, args, model, validation, collate))


@dataclass(frozen=True)
class LinearPhase(Phase):
    """A training whose learning rate rises linearly in the warm-up and then falls to 0, as in accelerate's example."""

    learning_rate: float
    warmup: int

    def rate(self, step: int) -> float:
        rising, falling = (step - 1) / max(1, self.warmup), (self.last - step + 1) / max(1, self.last - self.warmup)
        return self.learning_rate * (rising if step <= self.warmup else falling)


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
    names, *rows = (line.split("\t") for line in text.split("\n"))
    columns = next((expected for expected in COLUMNS if all(names.count(name) == 1 for name in expected)), None)
    if columns is None:
        raise RecipeError(f"{path}, line 1: expected the columns {', '.join(COLUMNS[0])} once, separated by tabs.")
    sentence_pairs = []
    for number, row in enumerate(rows, start=2):
        if row != [""] and len(row) != len(names):
            raise RecipeError(f"{path}, line {number}: expected {len(names)} fields, separated by tabs.")
        if row != [""]:
            sentence_pairs.append(pair_of(dict(zip(names, row, strict=True)), columns, f"{path}, line {number}"))
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
    return int(str(label)), str(first), str(second)


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
    metrics = {"accuracy": binary_accuracy, "f1": binary_f1_score}
    return {name: 100 * float(metric(predicted, expected)) for name, metric in metrics.items()}


class Training(Loop):
    """The training on sentence pairs."""

    def micros(self, phase: LinearPhase, step: int) -> Sequence[dict[str, Any]]:
        count = self.data.dealing.micro_batches
        return [self.data[number] for number in range((step - 1) * count, step * count)]

    def loss(self, micro: dict[str, Any]) -> tuple[Any, dict[str, float]]:
        weight = micro.pop(WEIGHT)
        loss = weighted(self.model(**micro).loss, weight)
        return loss, {"losses": float(loss.detach()), "micro_batches": 1}

    def figures(self, phase: LinearPhase, step: int, sums: Mapping[str, float]) -> dict[str, Any]:
        loss = sums["losses"] * self.data.dealing.micro_batches / sums["micro_batches"]
        return {"epoch": step / self.data.steps, "loss": loss}


if __name__ == "__main__":
    sys.exit(run_script(lambda: run(*arguments.parse(sys.argv[1:], (MrpcArguments,)))))
