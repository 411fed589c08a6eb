"""Parse the command line: the arguments of Hugging Face's run_qa.py, and a few more."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from orch_training import ArgumentError, arguments, describe
from orch_training.arguments import CommunicationArguments, DataSetArguments, ModelArguments, neutral, option
from orch_training.kernels import FUSED, configure_ipex
from orch_training.ranks import note, owns
from transformers import TrainingArguments

INSTALLED = {argument.name: argument for argument in fields(TrainingArguments)}
BACKENDS = tuple(INSTALLED["ddp_backend"].metadata.get("choices", ()))
# Why a flag that the installed version of transformers does not have makes no difference.
REMOVED = {"use_ipex": "PyTorch's own oneDNN kernels are used", "jit_mode_eval": "the model runs as it is"}
# The arguments of Trainer that change the computation, and that a checkpoint therefore names.
COMPARED = (
    *("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
    *("num_train_epochs", "max_steps", "lr_scheduler_type", "warmup_steps", "warmup_ratio"),
    *("label_smoothing_factor", "dataloader_drop_last", "seed", "data_seed"),
)


@dataclass
class QaArguments(ModelArguments, DataSetArguments, CommunicationArguments):
    """The arguments of the recipe apart from those of Trainer: those of run_qa.py, and a few more."""

    exclude_validation_ids: bool = option(False, "Do not train on questions of the evaluation.")
    overwrite_cache: bool = neutral(False, "Accepted; nothing is cached.")
    preprocessing_num_workers: int | None = neutral(None, "Accepted; the tokenizer has threads.")
    max_seq_length: int = option(384, "Tokens of a window, including the question.")
    doc_stride: int = option(128, "Tokens that neighbouring windows share.")
    pad_to_max_length: bool = option(True, "Pad all windows to max_seq_length, not to the longest.")
    version_2_with_negative: bool = option(False, "Questions may have no answer.")
    null_score_diff_threshold: float = option(0.0, "Lead that 'no answer' needs to be chosen.")
    n_best_size: int = option(20, "Candidates to keep per question.")
    max_answer_length: int = option(30, "Maximum length of an answer in tokens.")

    def rules(self, training: Any) -> list[tuple[bool, str]]:
        """Return each rule of these arguments and those of Trainer as whether it is violated, and the message."""
        return [
            *arguments.task_requirements(self, training),
            (training.do_predict, "--do_predict is not supported; evaluate with --do_eval."),
            (
                self.exclude_validation_ids and self.dataset_name is None and not self.validation_file,
                "--exclude_validation_ids needs --validation_file or --dataset_name.",
            ),
            (training.evaluate_before_training and not training.do_eval, "--evaluate_before_training needs --do_eval."),
            (
                not 0 <= self.doc_stride < self.max_seq_length,
                f"--doc_stride {self.doc_stride} must be less than --max_seq_length {self.max_seq_length}.",
            ),
            (training.load_best_model_at_end, "--load_best_model_at_end is not supported: the last model is kept."),
            (training.save_only_model, "--save_only_model is not supported: training could not resume exactly."),
            (training.push_to_hub, "--push_to_hub is not supported."),
            (not training.dataloader_drop_last, "--dataloader_drop_last false is not supported; examples count once."),
            (
                getattr(training, "group_by_length", False)
                or getattr(training, "train_sampling_strategy", "random") != "random",
                "the order of the data is random, or with --length_grouping that of their lengths.",
            ),
            *self.communication_requirements(),
            (training.max_steps < 1 and training.max_steps != -1, "--max_steps must be at least 1."),  # -1: not set
            (training.num_train_epochs <= 0 and training.max_steps <= 0, "--num_train_epochs must be over 0."),
        ]


@dataclass
class TrainingOptions(TrainingArguments):
    """TrainingArguments with the defaults of this recipe, and with arguments that newer versions of it lack.

    The last incomplete batch is dropped because accelerate fills it by repeating examples, and no
    example must count twice. DDP does not search for unused parameters because BERT for question
    answering uses all of its parameters.
    """

    report_to: str = "none"  # orch_training.metrics writes the TensorBoard files
    dataloader_drop_last: bool = True
    dataloader_pin_memory: bool = False
    remove_unused_columns: bool = False
    ddp_find_unused_parameters: bool | None = False
    disable_tqdm: bool | None = True
    logging_steps: float = 10
    logging_nan_inf_filter: bool = False  # Trainer otherwise logs such losses as 0
    optim: str = FUSED
    use_cpu: bool = option(True, "Accepted; this recipe trains on CPUs.")
    no_cuda: bool = option(True, "Accepted; this recipe trains on CPUs.")
    ddp_backend: str | None = option(None, "Backend that joins the ranks, unless orch has joined them.")
    warmup_ratio: float = option(0.0, "Share of the steps in which the learning rate rises.")
    overwrite_output_dir: bool = neutral(False, "Start from the beginning instead of from the newest checkpoint.")
    use_ipex: bool = neutral(False, "Use IPEX (transformers before 4.57).")
    evaluate_before_training: bool = option(False, "Evaluate before training, too.")
    jit_mode_eval: bool = option(False, "Evaluate with PyTorch's JIT (transformers before 5.0).")

    def __post_init__(self) -> None:
        for name in ("use_cpu", "no_cuda"):
            if not getattr(self, name):
                raise ArgumentError(f"--{name} false: this recipe trains on CPUs only.")
        self.no_cuda = False  # the older name, of which transformers warns
        for name, reason in REMOVED.items():
            if getattr(self, name) and name not in INSTALLED:
                setattr(self, name, False)
                note(f"--{name} is ignored: this version of transformers does not have it; {reason}.")
        self.optim = configure_ipex(self.use_ipex, self.optim)
        self.ddp_backend = available_backend(self.ddp_backend)
        super().__post_init__()

    @property
    def should_save(self) -> bool:
        """Return whether this rank writes; only one rank per file system does."""
        return owns(Path(self.output_dir))

    @property
    def resume(self) -> str | None:
        return "none" if self.overwrite_output_dir else self.resume_from_checkpoint

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the steps in which the learning rate rises: --warmup_steps, or --warmup_ratio if that is 0.

        Newer versions have no --warmup_ratio.
        """
        steps = int(super().get_warmup_steps(num_training_steps))
        return steps or math.ceil(self.warmup_ratio * num_training_steps)


def available_backend(requested: str | None) -> str | None:
    """Return the backend for Trainer, or None if the ranks have joined or there is only one.

    Raises:
        ArgumentError: if the installed version does not offer the backend.
    """
    if dist.is_initialized():
        if requested not in (None, dist.get_backend()):
            note(f"--ddp_backend {requested} is ignored: the ranks are already joined by {dist.get_backend()}.")
        return None
    if requested and BACKENDS and requested not in BACKENDS:
        raise ArgumentError(describe("unknown-backend", requested=requested, known=", ".join(BACKENDS)))
    return None if os.environ.get("WORLD_SIZE", "1") == "1" else requested


class Config(NamedTuple):
    """The parsed command line."""

    args: Any  # QaArguments, or those of another script
    training: TrainingOptions


def parse_arguments(argv: list[str], kind: type[QaArguments] = QaArguments) -> Config:
    """Parse and check the arguments, as far as is possible without reading a file.

    Arguments without an effect are accepted; their help says so.

    Raises:
        ArgumentError: if an argument is unknown or invalid.
    """
    config = Config(*arguments.parse(argv, (kind, TrainingOptions)))
    arguments.check_requirements(config.args.rules(config.training))
    return config
