"""Pass the epoch from Trainer to the sampler."""

from __future__ import annotations

from typing import Any

from orch_training.shuffling import EpochSampler
from transformers import TrainerCallback


class EpochFollower(TrainerCallback):  # type: ignore[misc]
    """A callback that sets the epoch; how Trainer itself does so differs between versions."""

    def __init__(self, sampler: EpochSampler) -> None:
        self.sampler = sampler

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.sampler.epoch = int(state.epoch or 0)  # an integer even after the last step of an epoch
