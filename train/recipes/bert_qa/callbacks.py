"""Callbacks of Trainer: metrics, preemption and the epoch of the sampler."""

from __future__ import annotations

from typing import Any

from orch_node import preemption
from orch_training.metrics import Course
from orch_training.optimizers import check_ipex
from orch_training.shuffling import EpochSampler
from transformers import TrainerCallback


class TrainingMetrics(TrainerCallback):  # type: ignore[misc]
    """A callback that passes the steps and losses of Trainer to the metrics."""

    def __init__(self, course: Course) -> None:
        self.course = course

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        check_ipex()
        self.course.begin(state.global_step, state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Log at each checkpoint and at the end, so that a resumed run averages the same steps.

        A preempted run writes a checkpoint and stops training.
        """
        if preemption.requested() and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
        if control.should_save or state.global_step >= state.max_steps:
            control.should_log = True
        self.course.after_step(state.global_step, logs=bool(control.should_log))
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:  # the summary at the end has no loss
            self.course.log(
                state.global_step, epoch=state.epoch, loss=logs["loss"], learning_rate=logs["learning_rate"]
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.course.close()


class EpochFollower(TrainerCallback):  # type: ignore[misc]
    """A callback that sets the epoch; how Trainer itself does so differs between versions."""

    def __init__(self, sampler: EpochSampler) -> None:
        self.sampler = sampler

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.sampler.epoch = int(state.epoch or 0)  # an integer even after the last step of an epoch
