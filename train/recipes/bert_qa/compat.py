"""Hide the differences between transformers 4.44 and 5.x in command line flags and defaults.

According to the wheels, `use_ipex` is removed in 4.57, `no_cuda` and `jit_mode_eval` in 5.0,
`ddp_backend ccl` in 5.1, `warmup_ratio` and `overwrite_output_dir` in 5.x.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields

import torch.distributed as dist
from orch_training.errors import ArgumentError
from orch_training.optimizers import FUSED, configure_ipex
from orch_training.ranks import note
from transformers import TrainingArguments

CURRENT_ARGUMENTS = frozenset(f.name for f in fields(TrainingArguments) if f.init)
TRUE, FALSE = ("true", "1", "yes", "t", "y"), ("false", "0", "no", "f", "n")


SCHEDULE = "lr_scheduler_type"


@dataclass
class TrainingOptions(TrainingArguments):
    """TrainingArguments with the defaults of this recipe; the command line can set each of them.

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
    optim: str = FUSED

    writes: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        self.optim = configure_ipex(bool(getattr(self, "use_ipex", False)), self.optim)
        self.use_cpu = True
        if os.environ.get("WORLD_SIZE", "1") == "1" or dist.is_initialized():
            self.ddp_backend = None  # use the existing process group unchanged
        super().__post_init__()

    @property
    def should_save(self) -> bool:
        """Return whether this rank writes; only one rank per file system does (ranks.owner_of)."""
        return self.writes


@dataclass(slots=True)
class Extras:
    """Arguments that only some transformers versions have; the recipe handles them itself."""

    warmup_ratio: float = 0.0
    overwrite_output_dir: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedOptions:
    """The arguments of Trainer that change the computation."""

    learning_rate: float
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    max_grad_norm: float
    num_train_epochs: float
    max_steps: int
    lr_scheduler_type: str
    warmup_steps: float
    label_smoothing_factor: float
    dataloader_drop_last: bool
    seed: int
    data_seed: int | None


def compared_options(training: TrainingOptions) -> ComparedOptions:
    """Return the arguments of Trainer that a checkpoint names."""
    return ComparedOptions(
        **{item.name: getattr(training, item.name) for item in fields(ComparedOptions) if item.name != SCHEDULE},
        lr_scheduler_type=str(getattr(training.lr_scheduler_type, "value", training.lr_scheduler_type)),
    )


class Argv:
    """A command line from which arguments can be removed."""

    def __init__(self, argv: list[str]) -> None:
        self.rest = [part for token in argv for part in split_token(token)]

    def value(self, name: str) -> str | None:
        """Remove each `--name VALUE` and return the last value, or None.

        Raises:
            ArgumentError: if the value is missing.
        """
        value = None
        while f"--{name}" in self.rest:
            index = self.rest.index(f"--{name}")
            if index + 1 == len(self.rest):
                raise ArgumentError(f"--{name} needs a value.")
            value = self.rest[index + 1]
            del self.rest[index : index + 2]
        return value

    def flag(self, name: str) -> bool | None:
        """Remove each `--name` or `--name true|false` and return the last value, or None."""
        value = None
        while f"--{name}" in self.rest:
            index = self.rest.index(f"--{name}")
            following = (self.rest[index + 1 : index + 2] or [""])[0].lower()
            value = following not in FALSE
            del self.rest[index : index + (2 if following in (*TRUE, *FALSE) else 1)]
        return value


def split_token(token: str) -> list[str]:
    """Split `--some-name=value` into `--some_name` and the value, as argparse accepts both."""
    if not token.startswith("--"):
        return [token]
    name, *value = token.split("=", 1)
    return [f"--{name[2:].replace('-', '_')}", *value]


def translate(argv: list[str]) -> tuple[list[str], Extras]:
    """Translate a command line for any version into one for the installed version, and extras."""
    args, extras = Argv(argv), Extras()
    ratio = args.value("warmup_ratio")
    if ratio is not None:
        extras.warmup_ratio = fraction("warmup_ratio", ratio)
    extras.overwrite_output_dir = args.flag("overwrite_output_dir") is True
    cpu_flags(args)
    drop_unknown_flags(args)
    choose_backend(args)
    return args.rest, extras


def fraction(name: str, text: str) -> float:
    """Parse a number from 0 to 1.

    Raises:
        ArgumentError: if it is not one.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ArgumentError(f"--{name} must be a number from 0 to 1, not {text!r}.")
    return value


def cpu_flags(args: Argv) -> None:
    """Remove the flags that request training on CPUs, which is all that this recipe does.

    Raises:
        ArgumentError: if a flag requests other devices.
    """
    for name in ("no_cuda", "use_cpu"):
        if args.flag(name) is False:
            raise ArgumentError(f"--{name} false: this recipe trains on CPUs only.")


def drop_unknown_flags(args: Argv) -> None:
    """Drop flags that the installed version does not have, with a note."""
    reasons = {"use_ipex": "PyTorch's own oneDNN kernels are used", "jit_mode_eval": "the model runs as it is"}
    for name, reason in reasons.items():
        requested = args.flag(name)
        if requested and name in CURRENT_ARGUMENTS:
            args.rest.append(f"--{name}")
        elif requested:
            note(f"--{name} is gone from this version of transformers; {reason}.")


def choose_backend(args: Argv) -> None:
    """Replace the requested backend by one that the installed version offers.

    An existing process group takes precedence.

    Raises:
        ArgumentError: if the installed version does not offer the backend.
    """
    backend = args.value("ddp_backend") or args.value("xpu_backend")
    if backend is None:
        return
    if dist.is_initialized():
        if backend != dist.get_backend():
            note(f"--ddp_backend {backend} is ignored: the ranks are already joined by {dist.get_backend()}.")
        return
    if backend == "ccl" and "ccl" not in backend_choices():
        raise ArgumentError(
            "--ddp_backend ccl is gone from this version of transformers. Start "
            "the script with orch, which joins the ranks before transformers runs."
        )
    args.rest += ["--ddp_backend", backend]


def backend_choices() -> tuple[str, ...]:
    """Return the backends that the installed version offers."""
    kinds = {f.name: f for f in fields(TrainingArguments)}
    return tuple(kinds["ddp_backend"].metadata.get("choices", ())) if "ddp_backend" in kinds else ()
