"""Extend Trainer with atomic checkpoints, SQuAD scores, and callbacks for metrics and preemption."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from config import QaArguments
from evaluation import Evaluator
from orch_node import preemption
from orch_node.events import note
from orch_training import RecipeError, ranks
from orch_training.batches import WEIGHT, EpochSampler, weighted
from orch_training.gradients import IN_BUCKETS, LocalSteps, compress
from orch_training.metrics import Course
from orch_training.resume import load_random_state, save_checkpoint
from safetensors.torch import save_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback

WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class TrainingMetrics(TrainerCallback):  # type: ignore[misc]
    """A callback that passes Trainer's steps and losses to the metrics, and its epochs to the order of the data."""

    def __init__(self, course: Course, order: EpochSampler) -> None:
        self.course, self.order = course, order

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.course.begin(state.global_step, state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the epoch; how Trainer itself does so differs between versions."""
        self.order.epoch = int(state.epoch or 0)  # an integer even after the last step of an epoch

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
            figures = {name: logs[name] for name in ("loss", "learning_rate")}
            self.course.log(state.global_step, epoch=state.epoch, **figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.course.close()


class QaTrainer(Trainer):  # type: ignore[misc]
    """A Trainer for question answering that resumes with any number of ranks."""

    def __init__(
        self, *, evaluator: Evaluator | None, course: Course, facts: dict[str, Any], qa_args: QaArguments, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.evaluator, self.facts, self.qa_args = evaluator, facts, qa_args
        self.order = EpochSampler(self.train_dataset)
        self.add_callback(TrainingMetrics(course, self.order))
        self.remove_callback(PrinterCallback)
        self.local_steps: LocalSteps | None = None
        self.staging: Path | None = None

    def get_train_dataloader(self) -> Any:
        """Return a loader of this rank's share of each step, whose order does not depend on the number of ranks."""
        names = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
        options = {name: getattr(self.args, f"dataloader_{name}") for name in names}
        # A batch is one micro batch. A loader draws a seed when it starts its workers, also those of a resumed run.
        options["generator"] = torch.Generator()
        return DataLoader(self.train_dataset, 1, sampler=self.order, collate_fn=itemgetter(0), **options)

    def _wrap_model(self, *args: Any, **kwargs: Any) -> Any:
        """Set the DDP options with which accelerate wraps the model later, if there are other ranks."""
        model = super()._wrap_model(*args, **kwargs)
        if settings := self.accelerator.ddp_handler:
            vars(settings).update(IN_BUCKETS)
        return model

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any) -> Any:
        """Run a micro batch forward and backward and return its share of the step's loss."""
        if self.local_steps is None:  # the first step: Trainer has just wrapped the model
            compress(model, self.qa_args.gradient_compression, self.state.global_step)
            self.local_steps = LocalSteps(model, self.optimizer, self.qa_args.local_sgd)
            self.local_steps.resume(self.state.global_step)
        weight = inputs.pop(WEIGHT)
        model.train()
        with self.compute_loss_context_manager():
            loss = weighted(self.compute_loss(model, self._prepare_inputs(inputs)), weight)
        loss.backward()
        return loss.detach()

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any) -> Any:
        """Return the mean cross entropy of start and end, over real tokens only.

        The loss of the model itself counts padding as possible answers. It would depend on which
        windows share a batch, and therefore on the number of ranks.
        """
        labels = [inputs.pop("start_positions"), inputs.pop("end_positions")]
        outputs = model(**inputs)
        padding = inputs["attention_mask"] == 0
        losses = [
            cross_entropy(logits.float().masked_fill(padding, float("-inf")), label)
            for logits, label in zip((outputs.start_logits, outputs.end_logits), labels, strict=True)
        ]
        loss = sum(losses) / len(losses)
        note(loss=loss.detach())
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Compute EM and F1 of the present model, for --eval_strategy.

        Raises:
            RecipeError: without --do_eval.
        """
        if self.evaluator is None:
            raise RecipeError("evaluation needs --do_eval.")
        self.agree()
        scores = self.evaluator.evaluate(self.model, "evaluate").scores
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        ranks.note("step {}: EM {em:.2f}, F1 {f1:.2f}".format(self.state.global_step, **scores))
        self.log(metrics)
        return metrics

    def _get_output_dir(self, trial: Any) -> str:
        """Return the folder below which Trainer writes its files."""
        return str(self.staging or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: Any, trial: Any, *args: Any, **kwargs: Any) -> None:
        """Let Trainer stage a checkpoint, then seal and rename it.

        Trainer's own file of random states is replaced: unpickling it may run code.
        """
        self.agree()

        def stage(folder: Path) -> None:
            self.staging = folder.parent
            super(QaTrainer, self)._save_checkpoint(model, trial, *args, **kwargs)
            self.staging = None

        save_checkpoint(self.args, self.state.global_step, self.state.max_steps, self.facts, stage)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the model on every file system; newer transformers save the weights on rank 0 only."""
        super()._save(output_dir, state_dict)
        folder = Path(output_dir or self.args.output_dir)
        if self.args.should_save and not any((folder / name).is_file() for name in WEIGHTS):
            model = self.accelerator.unwrap_model(self.model)
            save_model(model, str(folder / WEIGHTS[0]), metadata={"format": "pt"})
            model.config.save_pretrained(folder)

    def _load_rng_state(self, path: str | None) -> None:
        """Restore the random state that _save_checkpoint has written."""
        if path:
            load_random_state(Path(path))

    def agree(self) -> None:
        """Average the weights over all ranks, because local steps let them differ."""
        if self.local_steps:
            self.local_steps.average_weights()

    def release(self) -> None:
        """Drop the DDP wrapper, which must not outlive the process group, and the autocast of accelerate."""
        self.agree()
        if forward := vars(self.model).pop("_original_forward", None):
            self.model.forward = forward
        self.model_wrapped = self.model
        self.accelerator.free_memory()
