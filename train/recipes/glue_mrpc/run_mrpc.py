"""Fine-tune a model to detect paraphrases, on one or more ranks.

Follows accelerate's nlp_example: Accelerator, AdamW, a linear schedule with warm-up.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

from orch_training import speed_up_imports

speed_up_imports()

from orch_training import arguments, kernels, ranks
from orch_training.arguments import DataSetArguments, LoopArguments, ModelArguments, neutral, option
from orch_training.batches import WEIGHT, Micros, weighted
from orch_training.loop import Loop, Phase, make_accelerator
from orch_training.models import load_model, load_tokenizer, sequence_length
from orch_training.provenance import FACT, provenance_of
from orch_training.resume import begin, prepare_output
from orch_training.script import run_script, train_and_evaluate
from pairs import evaluate, load_rows
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

LENGTH_MULTIPLE = 16  # fewer distinct shapes need less memory


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


def parse_arguments(argv: list[str]) -> MrpcArguments:
    """Parse and check the arguments, as far as is possible without reading a file.

    Raises:
        ArgumentError: if an argument is unknown or invalid.
    """
    (args,) = arguments.parse(argv, (MrpcArguments,))
    arguments.check_requirements(
        [
            *arguments.task_requirements(args, args),
            (args.num_train_epochs < 1, "--num_train_epochs must be at least 1."),
            (args.max_steps is not None and args.max_steps < 1, "--max_steps must be at least 1."),
            *args.requirements(),
        ]
    )
    return args


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
    rows = {"training data": training_rows, "evaluation data": validation}
    provenance = provenance_of(__file__, args, rows, args)
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
    sys.exit(run_script(lambda: run(parse_arguments(sys.argv[1:]))))
