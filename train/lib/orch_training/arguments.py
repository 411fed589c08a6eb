"""Parses command lines into dataclasses with Hugging Face's parser; errors are one line."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NoReturn

from transformers import HfArgumentParser

from orch_training import ArgumentError

COUNTS = (
    *("per_device_train_batch_size", "per_device_eval_batch_size", "train_batch_size", "gradient_accumulation_steps"),
    *("per_device_train_batch_size_phase2", "train_batch_size_phase2", "max_steps_phase2", "shards", "dupe_factor"),
    *("max_train_samples", "max_eval_samples", "n_best_size", "max_answer_length", "num_calibration_samples"),
)
SHARES = ("adam_beta1", "adam_beta2", "dropout", "warmup_ratio", "warmup_proportion", "warmup_proportion_phase2")
# The lowest value of arguments of all recipes, and the value that they must be less than.
RANGES: tuple[tuple[int, int | None, tuple[str, ...]], ...] = (
    (1, None, COUNTS),
    (0, None, ("learning_rate", "learning_rate_phase2", "weight_decay", "adam_epsilon", "save_steps")),
    (0, None, ("warmup_steps", "max_grad_norm")),
    (0, 1, SHARES),
    (0, 1 << 32, ("seed", "data_seed")),  # as NumPy
)


def option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


def neutral(default: Any, text: str) -> Any:
    """Return an option that does not change the result, that a fingerprint covers, or that may differ after a resume.

    The manifest has the global batch, so a step has the same examples with any number of ranks.
    """
    return field(default=default, metadata={"help": text}, compare=False)


def compared(options: Any) -> dict[str, Any]:
    """Return the options that must be those of the checkpoint from which a run resumes."""
    return {f.name: getattr(options, f.name) for f in fields(options) if f.compare}


@dataclass
class CommunicationArguments:
    """The arguments for what is sent between nodes."""

    gradient_compression: Literal["none", "bf16", "powersgd"] = option("none", "Compression for slow networks.")
    local_sgd: int = option(0, "Steps between averaging the weights over nodes instead of the gradients; 0: off.")

    def communication_requirements(self) -> list[tuple[bool, str]]:
        compression, period = self.gradient_compression, self.local_sgd
        return [
            (period < 0 or period == 1, "--local_sgd must be 0 (off) or at least 2 steps."),
            (bool(period) and compression != "none", "--local_sgd and --gradient_compression cannot be combined."),
        ]


@dataclass
class HubArguments:
    """The arguments for what is loaded from folders, packages or a hub."""

    config_name: str | None = neutral(None, "Configuration, if it differs from the model's.")
    tokenizer_name: str | None = neutral(None, "Tokenizer, if it differs from the model's.")
    cache_dir: str | None = neutral(None, "Folder for models from the hub.")
    model_revision: str = neutral("main", "Branch, tag or commit on the hub.")
    token: str | None = neutral(None, "Access token for the hub.")
    trust_remote_code: bool = neutral(False, "Allow a model from the hub to run its code.")
    dropout: float | None = option(None, "Set all dropout probabilities of the model.")


@dataclass
class ModelArguments(HubArguments):
    """The arguments for a trained model."""

    model_name_or_path: str = neutral(
        "", "A folder, a name on the hub, or package:NAME/FOLDER in an installed package."
    )


@dataclass
class DataSetArguments:
    """The arguments for the data of a recipe that trains and evaluates on a data set of the hub or on files."""

    dataset_name: str | None = neutral(None, "A data set of the hub (needs `datasets`).")
    dataset_config_name: str | None = neutral(None, "Configuration of the data set, such as mrpc.")
    train_file: str | None = neutral(None, "SQuAD JSON or rows as .json or .jsonl; for pairs a TSV file.")
    validation_file: str | None = neutral(None, "The same for the evaluation.")
    length_grouping: bool = option(False, "Group rows of similar length in batches: less padding, different order.")
    max_train_samples: int | None = neutral(None, "Train on the first questions or pairs only.")
    max_eval_samples: int | None = neutral(None, "Evaluate the first questions or pairs only.")


@dataclass
class LoopArguments(CommunicationArguments):
    """The arguments of recipes with their own training loop, named as in TrainingArguments."""

    output_dir: str = neutral("", "Folder for all output.")
    overwrite_output_dir: bool = neutral(False, "Start from the beginning instead of from the newest checkpoint.")
    resume_from_checkpoint: str | None = neutral(None, "auto, none, or a checkpoint.")
    save_steps: int = neutral(500, "Steps between checkpoints; 0: no checkpoints.")
    save_total_limit: int | None = neutral(None, "Number of checkpoints to keep.")
    logging_steps: int = neutral(10, "Steps between two lines of metrics.")
    max_grad_norm: float = option(0.0, "Clip the gradients to this norm; 0: no clipping.")
    seed: int = option(42, "Seed of new weights, dropout and the order of the data.")
    mixed_precision: Literal["no", "bf16"] = neutral("no", "no: FP32.")
    cpu: bool = neutral(True, "Accepted; these recipes train on CPUs.")

    @property
    def resume(self) -> str | None:
        return "none" if self.overwrite_output_dir else self.resume_from_checkpoint

    @property
    def bf16(self) -> bool:
        return self.mixed_precision == "bf16"

    def requirements(self) -> list[tuple[bool, str]]:
        return [
            (not self.output_dir, "--output_dir is missing."),
            (not self.cpu, "--cpu false: this recipe trains on CPUs only."),
            *self.communication_requirements(),
            (self.logging_steps < 1, "--logging_steps must be at least 1."),
        ]


def task_requirements(args: Any, training: Any) -> list[tuple[bool, str]]:
    """Return the rules of a recipe that trains and evaluates on a data set of the hub or on files."""
    hub = args.dataset_name is not None
    lacks_rows = training.do_eval and not (hub or args.validation_file)
    return [
        (not args.model_name_or_path, "--model_name_or_path is missing."),
        (not (training.do_train or training.do_eval), "pass --do_train, --do_eval or both."),
        (hub and bool(args.train_file or args.validation_file), "pass --dataset_name or data files, not both."),
        (training.do_train and not (hub or args.train_file), "--do_train needs --train_file or --dataset_name."),
        (lacks_rows, "--do_eval needs --validation_file or --dataset_name."),
    ]


class Parser(HfArgumentParser):
    """A parser whose errors are one line, without the usage of two hundred options."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(re.sub(r"/--[\w-]+", "", message) + ".")


def parse(argv: list[str], kinds: Sequence[type]) -> tuple[Any, ...]:
    """Return one value of each kind, which follows the rules of its requirements().

    Raises:
        ArgumentError: if an argument is unrecognized or invalid.
    """
    parser = Parser(tuple(kinds))
    try:
        *values, unrecognized = parser.parse_args_into_dataclasses(
            argv, return_remaining_strings=True, look_for_args_file=False
        )
    except (ValueError, ImportError, RuntimeError) as error:  # checks of TrainingArguments
        raise ArgumentError(" ".join(str(error).split())) from error
    if unrecognized:
        names = [name for action in parser._actions for name in action.option_strings]
        near = difflib.get_close_matches(unrecognized[0], names, n=1)
        suggestion = f" Did you mean {near[0]}?" if near else ""
        raise ArgumentError(f"unknown argument {unrecognized[0]!r}.{suggestion}")
    check_requirements([rule for value in values for rule in range_requirements(value)])
    check_requirements([rule for value in values for rule in getattr(value, "requirements", list)()])
    return tuple(values)


def range_requirements(values: Any) -> list[tuple[bool, str]]:
    """Return the rules of RANGES for the arguments of one kind."""
    return [
        (
            not least <= value < (below or math.inf),
            f"--{name} must be at least {least}{f' and less than {below}' if below else ''}.",
        )
        for least, below, names in RANGES
        for name in names
        if (value := getattr(values, name, None)) is not None
    ]


def check_requirements(requirements: Sequence[tuple[bool, str]]) -> None:
    """Raise the message of the first rule that is violated; a rule is (is violated, message)."""
    problem = next((message for is_violated, message in requirements if is_violated), None)
    if problem:
        raise ArgumentError(problem)
