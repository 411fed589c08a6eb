"""Parse the command line: the arguments of Hugging Face's run_qa.py, and a few more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from answers import Search
from compat import Extras, TrainingOptions, translate
from orch_training import arguments
from orch_training.arguments import CommunicationArguments, GroupingArguments, ModelArguments, option
from orch_training.ranks import note


@dataclass
class DataArguments:
    """The arguments for the data and the search for answers."""

    dataset_name: str | None = option(None, "A data set of the hub (needs `datasets`).")
    dataset_config_name: str | None = option(None, "Configuration of the data set.")
    train_file: str | None = option(None, "SQuAD JSON, or rows as .json or .jsonl.")
    validation_file: str | None = option(None, "The same for the evaluation.")
    exclude_validation_ids: bool = option(False, "Do not train on questions of the evaluation.")
    overwrite_cache: bool = option(False, "Accepted; nothing is cached.")
    preprocessing_num_workers: int | None = option(None, "Accepted; the tokenizer has threads.")
    max_seq_length: int = option(384, "Tokens of a window, including the question.")
    doc_stride: int = option(128, "Tokens that neighbouring windows share.")
    pad_to_max_length: bool = option(True, "Pad all windows to max_seq_length, not to the longest.")
    max_train_samples: int | None = option(None, "Train on the first questions only.")
    max_eval_samples: int | None = option(None, "Evaluate the first questions only.")
    version_2_with_negative: bool = option(False, "Questions may have no answer.")
    null_score_diff_threshold: float = option(0.0, "Lead that 'no answer' needs to be chosen.")
    n_best_size: int = option(20, "Candidates to keep per question.")
    max_answer_length: int = option(30, "Maximum length of an answer in tokens.")

    @property
    def search(self) -> Search:
        """Return the settings of the search for answers."""
        return Search(**{setting.name: getattr(self, setting.name) for setting in fields(Search)})


@dataclass
class RunArguments(CommunicationArguments, GroupingArguments):
    """The arguments of this recipe that run_qa.py does not have."""

    evaluate_before_training: bool = option(False, "Evaluate before training, too.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The parsed command line."""

    model: ModelArguments
    data: DataArguments
    run: RunArguments
    training: TrainingOptions
    extras: Extras
    further: tuple[Any, ...] = ()


def parse_arguments(argv: list[str], further: Sequence[type] = ()) -> Config:
    """Parse and check the arguments, as far as is possible without reading a file.

    Arguments without an effect are accepted with a note.

    Args:
        argv: the command line.
        further: dataclasses with arguments of another script.

    Raises:
        ArgumentError: if an argument is unknown or invalid.
    """
    translated, extras = translate(argv)
    kinds = (ModelArguments, DataArguments, RunArguments, TrainingOptions)
    *parsed, model, data, run, training = arguments.parse(translated, (*further, *kinds))
    config = Config(model=model, data=data, run=run, training=training, extras=extras, further=tuple(parsed))
    arguments.check_requirements(requirements(config))
    if data.overwrite_cache or data.preprocessing_num_workers:
        note("--overwrite_cache and --preprocessing_num_workers have no effect here.")
    return config


def requirements(config: Config) -> list[tuple[bool, str]]:
    """Return each requirement as whether it is violated, and the message."""
    model, data, training = config.model, config.data, config.training
    return [
        *arguments.task_requirements(model, data, training),
        (training.do_predict, "--do_predict is not supported; evaluate with --do_eval."),
        (
            data.exclude_validation_ids and data.dataset_name is None and not data.validation_file,
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
        *config.run.communication_requirements(),
        *((value < 1, f"--{name} must be at least 1.") for name, value in counts(config)),
    ]


def counts(config: Config) -> list[tuple[str, float]]:
    """Return the arguments that must be at least 1."""
    of_data = ("n_best_size", "max_answer_length", "max_train_samples", "max_eval_samples")
    of_training = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
    values = [(name, getattr(config.data, name)) for name in of_data]
    values += [(name, getattr(config.training, name)) for name in of_training]
    return [(name, value) for name, value in values if value is not None]
