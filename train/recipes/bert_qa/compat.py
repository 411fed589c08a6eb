"""What differs between transformers 4.30 and 5.x: spellings of the command line, and defaults.

Which flag came and went when was read from the wheels of 4.30 to 5.23: `use_cpu` came with 4.32
for `no_cuda` (gone in 5.0), `eval_strategy` came with 4.41 for `evaluation_strategy`, `use_ipex`
went in 4.57, `jit_mode_eval` in 5.0, `ddp_backend ccl` in 5.1, `warmup_ratio` and
`overwrite_output_dir` in 5.x.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields

import torch.distributed as dist
from orch_training import ipex
from orch_training.errors import ArgumentError
from orch_training.optimizers import FASTEST, optimizer_for
from orch_training.ranks import note
from transformers import TrainingArguments

KNOWN = frozenset(f.name for f in fields(TrainingArguments) if f.init)
TRUE, FALSE = ("true", "1", "yes", "t", "y"), ("false", "0", "no", "f", "n")


@dataclass
class TrainingOptions(TrainingArguments):
    """TrainingArguments with defaults for this recipe; every one can be given on the command line.

    drop_last: accelerate fills the last global batch by repeating examples, and an example must
    not count twice. find_unused_parameters: BERT for question answering uses all of its.
    """

    report_to: str = "none"  # metrics.py writes the TensorBoard files
    dataloader_drop_last: bool = True
    dataloader_pin_memory: bool = False
    remove_unused_columns: bool = False
    ddp_find_unused_parameters: bool | None = False
    disable_tqdm: bool | None = True
    logging_steps: float = 10
    optim: str = FASTEST

    writes: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        use_ipex = bool(getattr(self, "use_ipex", False))
        ipex.configure(use_ipex)
        self.optim = optimizer_for(self.optim, use_ipex)
        setattr(self, "use_cpu" if "use_cpu" in KNOWN else "no_cuda", True)
        if os.environ.get("WORLD_SIZE", "1") == "1" or dist.is_initialized():
            self.ddp_backend = None  # the group that exists is used as it is
        super().__post_init__()

    @property
    def should_save(self) -> bool:
        """One rank per file system writes, which transformers cannot find out (ranks.owner_of)."""
        return self.writes


@dataclass(slots=True)
class Extras:
    """Arguments that not every transformers version has; the recipe handles them itself."""

    warmup_ratio: float = 0.0
    overwrite_output_dir: bool = False


class Argv:
    """A command line from which single arguments can be taken."""

    def __init__(self, argv: list[str]) -> None:
        self.rest = [part for token in argv for part in split_token(token)]

    def value(self, name: str) -> str | None:
        """Take `--name VALUE`; the last one counts."""
        found = None
        while f"--{name}" in self.rest:
            at = self.rest.index(f"--{name}")
            if at + 1 == len(self.rest):
                raise ArgumentError(f"--{name} needs a value.")
            found = self.rest[at + 1]
            del self.rest[at : at + 2]
        return found

    def flag(self, name: str) -> bool | None:
        """Take `--name` or `--name true|false`."""
        found = None
        while f"--{name}" in self.rest:
            at = self.rest.index(f"--{name}")
            following = (self.rest[at + 1 : at + 2] or [""])[0].lower()
            found = following not in FALSE
            del self.rest[at : at + (2 if following in (*TRUE, *FALSE) else 1)]
        return found


def split_token(token: str) -> list[str]:
    """--some-name=value as --some_name and value; argparse would take both spellings, too."""
    if not token.startswith("--"):
        return [token]
    name, *value = token.split("=", 1)
    return [f"--{name[2:].replace('-', '_')}", *value]


def translate(argv: list[str]) -> tuple[list[str], Extras]:
    """A command line written for any version -> one for the installed version, and the rest."""
    args, extras = Argv(argv), Extras()
    ratio = args.value("warmup_ratio")
    if ratio is not None:
        extras.warmup_ratio = fraction("warmup_ratio", ratio)
    extras.overwrite_output_dir = args.flag("overwrite_output_dir") is True
    rename_strategy(args)
    cpu_flags(args)
    drop_unknown_flags(args)
    choose_backend(args)
    return args.rest, extras


def fraction(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ArgumentError(f"--{name} must be a number from 0 to 1, not {text!r}.")
    return value


def rename_strategy(args: Argv) -> None:
    wanted = "eval_strategy" if "eval_strategy" in KNOWN else "evaluation_strategy"
    for name in ("eval_strategy", "evaluation_strategy"):
        value = args.value(name)
        if value is not None:
            args.rest += [f"--{wanted}", value]


def cpu_flags(args: Argv) -> None:
    """This recipe trains on CPUs; the flags that ask for it are accepted, not needed."""
    for name, contrary in (("no_cuda", False), ("use_cpu", False)):
        if args.flag(name) is contrary:
            raise ArgumentError(f"--{name} false: this recipe trains on CPUs only.")


def drop_unknown_flags(args: Argv) -> None:
    reasons = {"use_ipex": "PyTorch's own oneDNN kernels are used", "jit_mode_eval": "the model runs as it is"}
    for name, instead in reasons.items():
        given = args.flag(name)
        if given and name in KNOWN:
            args.rest.append(f"--{name}")
        elif given:
            note(f"--{name} is gone from this version of transformers; {instead}.")


def choose_backend(args: Argv) -> None:
    """A process group that exists decides; else gloo, or what the installed version offers."""
    wanted = args.value("ddp_backend") or args.value("xpu_backend")
    if wanted is None:
        return
    if dist.is_initialized():
        if wanted != dist.get_backend():
            note(f"--ddp_backend {wanted} is ignored: the ranks are already joined by {dist.get_backend()}.")
        return
    if wanted == "ccl" and "ccl" not in backend_choices():
        raise ArgumentError(
            "--ddp_backend ccl is gone from this version of transformers. Start "
            "the script with orch, which joins the ranks before transformers runs."
        )
    args.rest += ["--ddp_backend", wanted]


def backend_choices() -> tuple[str, ...]:
    kinds = {f.name: f for f in fields(TrainingArguments)}
    return tuple(kinds["ddp_backend"].metadata.get("choices", ())) if "ddp_backend" in kinds else ()
