"""Parse the command line."""

from __future__ import annotations

from dataclasses import dataclass

from orch_training import arguments
from orch_training.arguments import GroupingArguments, LoopArguments, ModelArguments, option
from orch_training.kernels import FUSED, PLAIN


@dataclass
class PairArguments:
    """The arguments for the data."""

    dataset_name: str | None = option(None, "A data set of the hub (needs `datasets`).")
    dataset_config_name: str | None = option(None, "Configuration of the data set, such as mrpc.")
    train_file: str | None = option(None, "TSV with label, sentence1 and sentence2, or a file of MRPC.")
    validation_file: str | None = option(None, "The same for the evaluation.")
    max_seq_length: int = option(128, "Maximum length of a pair in tokens.")
    max_train_samples: int | None = option(None, "Train on the first pairs only.")
    max_eval_samples: int | None = option(None, "Evaluate the first pairs only.")


@dataclass
class MrpcArguments(LoopArguments, GroupingArguments):
    """The arguments for training and evaluation."""

    do_train: bool = option(True, "Train.")
    do_eval: bool = option(True, "Evaluate after training.")
    evaluate_before_training: bool = option(True, "Evaluate before training, too.")
    per_device_train_batch_size: int = option(8, "Pairs per rank and step.")
    per_device_eval_batch_size: int = option(32, "Pairs per rank.")
    gradient_accumulation_steps: int = option(1, "Batches per step.")
    learning_rate: float = option(1e-4, "Highest learning rate; it then falls linearly to 0.")
    weight_decay: float = option(0.01, "Weight decay of AdamW.")
    warmup_steps: int = option(10, "Steps in which the learning rate rises.")
    num_train_epochs: int = option(8, "Passes over the data.")
    max_steps: int | None = option(None, "Stop after this many steps instead.")
    optim: str = option(FUSED, "adamw_torch, or adamw_torch_fused.")
    max_grad_norm: float = option(0.0, "Clip the gradients to this norm; 0: no clipping.")
    use_ipex: bool = option(False, "Use IPEX (accelerate before 1.8).")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The parsed command line."""

    model: ModelArguments
    data: PairArguments
    loop: MrpcArguments


def parse_arguments(argv: list[str]) -> Config:
    """Parse and check the arguments, as far as is possible without reading a file.

    Raises:
        ArgumentError: if an argument is unknown or invalid.
    """
    model, data, loop = arguments.parse(argv, (ModelArguments, PairArguments, MrpcArguments))
    config = Config(model=model, data=data, loop=loop)
    arguments.check_requirements(requirements(config))
    return config


def requirements(config: Config) -> list[tuple[bool, str]]:
    """Return each requirement as whether it is violated, and the message."""
    loop = config.loop
    counts = (
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
    )
    return [
        *arguments.task_requirements(config.model, config.data, loop),
        *((getattr(loop, name) < 1, f"--{name} must be at least 1.") for name in counts),
        (loop.max_steps is not None and loop.max_steps < 1, "--max_steps must be at least 1."),
        (loop.optim not in (PLAIN, FUSED), f"--optim must be {PLAIN} or {FUSED}."),
        *loop.requirements(),
    ]
