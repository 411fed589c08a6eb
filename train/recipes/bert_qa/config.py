"""Parse the command line: the arguments of Hugging Face's run_qa.py, and a few more."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from answers import Search
from compat import Extras, TrainingOptions, translate
from orch_training.arguments import (
    COMPRESSION,
    GROUPING,
    LOCAL_SGD,
    ModelArguments,
    check_requirements,
    communication_requirements,
    option,
    parse,
)
from orch_training.ranks import note


@dataclass
class DataArguments:
    """The arguments for the data and the search for answers."""

    dataset_name: str | None = option(None, "A data set of the hub (needs `datasets`).")
    dataset_config_name: str | None = option(None, "Its configuration.")
    train_file: str | None = option(None, "SQuAD JSON, or rows as .json or .jsonl.")
    validation_file: str | None = option(None, "The same, to evaluate.")
    exclude_validation_ids: bool = option(False, "Leave out of training what is evaluated.")
    overwrite_cache: bool = option(False, "Accepted; nothing is cached.")
    preprocessing_num_workers: int | None = option(None, "Accepted; the tokenizer has threads.")
    max_seq_length: int = option(384, "Tokens of a window, question included.")
    doc_stride: int = option(128, "Tokens that two neighbouring windows share.")
    pad_to_max_length: bool = option(True, "Pad all windows to max_seq_length, not to the longest.")
    max_train_samples: int | None = option(None, "Train on the first questions only.")
    max_eval_samples: int | None = option(None, "Evaluate the first questions only.")
    version_2_with_negative: bool = option(False, "Questions may have no answer.")
    null_score_diff_threshold: float = option(0.0, "How far 'no answer' must lead to be chosen.")
    n_best_size: int = option(20, "Candidates that are kept per question.")
    max_answer_length: int = option(30, "Tokens of the longest answer.")

    @property
    def search(self) -> Search:
        """Return the settings of the search for answers."""
        return Search(
            n_best_size=self.n_best_size,
            max_answer_length=self.max_answer_length,
            version_2_with_negative=self.version_2_with_negative,
            null_score_diff_threshold=self.null_score_diff_threshold,
        )


@dataclass
class RunArguments:
    """The arguments of this recipe that run_qa.py does not have."""

    evaluate_before_training: bool = option(False, "Score the model before it is trained, too.")
    gradient_compression: str = option("none", COMPRESSION)
    local_sgd: int = option(0, LOCAL_SGD)
    length_grouping: bool = option(False, GROUPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The parsed command line."""

    model: ModelArguments
    data: DataArguments
    run: RunArguments
    training: TrainingOptions
    extras: Extras


def parse_arguments(argv: list[str]) -> Config:
    """Parse and check the arguments, as far as is possible without reading a file.

    Raises:
        ArgumentError: if an argument is unknown or invalid.
    """
    arguments, extras = translate(argv)
    model, data, run, training = parse(arguments, (ModelArguments, DataArguments, RunArguments, TrainingOptions))
    config = Config(model=model, data=data, run=run, training=training, extras=extras)
    check(config)
    return config


def check(config: Config) -> None:
    """Check the arguments, and print a note about those without an effect.

    Raises:
        ArgumentError: if an argument is invalid.
    """
    check_requirements(requirements(config))
    if config.data.overwrite_cache or config.data.preprocessing_num_workers:
        note("--overwrite_cache and --preprocessing_num_workers have no effect here.")


def requirements(config: Config) -> list[tuple[bool, str]]:
    """Return each requirement as whether it is violated, and the message."""
    model, data, training = config.model, config.data, config.training
    hub = data.dataset_name is not None
    return [
        (not model.model_name_or_path, "--model_name_or_path is missing."),
        (not (training.do_train or training.do_eval), "pass --do_train, --do_eval or both."),
        (training.do_predict, "--do_predict is not supported; evaluate with --do_eval."),
        (hub and bool(data.train_file or data.validation_file), "pass --dataset_name or data files, not both."),
        (training.do_train and not (hub or data.train_file), "--do_train needs --train_file or --dataset_name."),
        (
            training.do_eval and not (hub or data.validation_file),
            "--do_eval needs --validation_file or --dataset_name.",
        ),
        (
            data.exclude_validation_ids and not (hub or data.validation_file),
            "--exclude_validation_ids needs --validation_file or --dataset_name.",
        ),
        (config.run.evaluate_before_training and not training.do_eval, "--evaluate_before_training needs --do_eval."),
        (
            not 0 <= data.doc_stride < data.max_seq_length,
            f"--doc_stride {data.doc_stride} must be less than --max_seq_length {data.max_seq_length}.",
        ),
        (
            model.dropout is not None and not 0 <= model.dropout < 1,
            f"--dropout {model.dropout} must be at least 0 and less than 1.",
        ),
        (training.load_best_model_at_end, "--load_best_model_at_end is not supported: the last model is kept."),
        (training.push_to_hub, "--push_to_hub is not supported."),
        *communication_requirements(config.run.gradient_compression, config.run.local_sgd),
        *model.requirements(),
        *((value < 1, f"--{name} must be at least 1.") for name, value in counts(config)),
    ]


def counts(config: Config) -> list[tuple[str, float]]:
    """Return the arguments that must be at least 1."""
    data, training = config.data, config.training
    values = {
        "n_best_size": data.n_best_size,
        "max_answer_length": data.max_answer_length,
        "max_train_samples": data.max_train_samples,
        "max_eval_samples": data.max_eval_samples,
        "per_device_train_batch_size": training.per_device_train_batch_size,
        "per_device_eval_batch_size": training.per_device_eval_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
    }
    return [(name, value) for name, value in values.items() if value is not None]


def from_command_line() -> Config:
    """Parse the arguments of this process."""
    return parse_arguments(sys.argv[1:])
