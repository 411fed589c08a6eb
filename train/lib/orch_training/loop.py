"""The training loop of recipes that do not use Trainer: metrics, checkpoints, preemption and resuming."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from orch_node import preemption
from transformers import set_seed

from orch_training import checkpoint, kernels, ranks
from orch_training.arguments import LoopArguments
from orch_training.gradients import IN_BUCKETS, LocalSteps, compress
from orch_training.metrics import Course
from orch_training.resume import load_numbers, load_random_state, save_checkpoint


def make_accelerator(args: LoopArguments) -> Accelerator:
    """Return an Accelerator, which joins the ranks unless they have joined already."""
    handlers = [DistributedDataParallelKwargs(**IN_BUCKETS)]
    return Accelerator(cpu=True, mixed_precision=args.mixed_precision, kwargs_handlers=handlers)


@dataclass(frozen=True)
class Phase:
    """A part of a training; rate(step) of a subclass is the learning rate of a step.

    Attributes:
        name: under which its progress is reported.
        before: the last step before the phase.
        last: its last step.
        batch: the examples of a step over all ranks.
    """

    name: str
    before: int
    last: int
    batch: int


class Loop:
    """Trains a model step by step; subclasses have the data and the losses."""

    def __init__(
        self,
        args: LoopArguments,
        accelerator: Accelerator,
        phases: Sequence[Any],
        data: Any,
        optimizer: Any,
        *,
        model: Any,
        trained: Any = None,
        facts: Mapping[str, Any],
    ) -> None:
        """Prepare the model and the optimizer for training.

        Args:
            args: the arguments of the recipe.
            accelerator: of this rank.
            phases: of the training.
            data: from which a subclass makes micro batches.
            optimizer: of the model's parameters.
            model: whose weights are saved.
            trained: the module whose forward() the training calls, by default the model.
            facts: further keys of the manifests of checkpoints.
        """
        self.args, self.accelerator, self.phases, self.data = args, accelerator, phases, data
        self.output_dir, self.facts = Path(args.output_dir), facts
        self.parts = {"model": model, "optimizer": optimizer}  # of a checkpoint
        self.model, self.optimizer = accelerator.prepare(trained or model, optimizer)
        self.local_steps = LocalSteps(self.model, optimizer, args.local_sgd)

    def micros(self, phase: Any, step: int) -> Sequence[Any]:
        """Return this rank's micro batches of a step."""
        raise NotImplementedError

    def loss(self, micro: Any) -> tuple[Any, dict[str, float]]:
        """Return the loss of a micro batch, and numbers that are summed over micro batches, steps and ranks."""
        raise NotImplementedError

    def figures(self, phase: Any, step: int, sums: Mapping[str, float]) -> dict[str, Any]:
        """Return the epoch, the loss and further figures from the sums since the last line of metrics."""
        raise NotImplementedError

    def run(self, start: Path | None, optimizer_name: str) -> dict[str, Any]:
        """Train the model in place, from a checkpoint if any, and return the speed, the steps and the last loss."""
        kernels.report_computation(bf16=self.args.bf16, optimizer=optimizer_name, kernels=kernels.settle(start))
        # With equal seeds, all ranks would drop the same units for different examples.
        set_seed(self.args.seed + ranks.rank())
        if start:
            for name, part in self.parts.items():
                part.load_state_dict(load_numbers(start / f"{name}.pt"))
            load_random_state(start)
        step = checkpoint.step_of(start) if start else 0
        compress(self.model, self.args.gradient_compression, step)
        self.local_steps.resume(step)
        steps = self.phases[-1].last
        course = Course(self.output_dir, samples_per_step=self.phases[0].batch, start_step=step)
        self.model.train()
        if step >= steps:
            course.begin(step, steps)
        for phase in self.phases:
            if step < phase.last:
                course.samples_per_step = phase.batch
                course.begin(step, steps, phase.name)
                step = self.run_phase(phase, step, course)
        course.close()
        self.accelerator.free_memory()
        return course.summary(step)

    def run_phase(self, phase: Any, step: int, course: Course) -> int:
        """Train the remaining steps of a phase and return its last step."""
        args, sums = self.args, Counter[str]()
        while step < phase.last:
            step += 1
            self.learn(phase, step, sums)
            preempted = preemption.requested() and step < self.phases[-1].last
            ends = step == phase.last
            saves = preempted or (bool(args.save_steps) and (ends or step % args.save_steps == 0))
            logs = saves or ends or step == phase.before + 1 or step % args.logging_steps == 0
            if logs:
                totals = Counter[str]()  # not by +, which omits NaN
                for part in ranks.gather(sums):
                    totals.update(part)
                course.log(step, learning_rate=phase.rate(step), **self.figures(phase, step, totals))
                sums.clear()
            course.after_step(step, logs=logs)
            if saves or ends:
                self.local_steps.average_weights()
            if saves:
                save_checkpoint(args, step, self.phases[-1].last, self.facts, self.stage)
            if preempted:
                preemption.end(step)
        return step

    def learn(self, phase: Any, step: int, sums: Counter[str]) -> None:
        """Compute a step, whose gradients are reduced after its last micro batch, and add to the sums."""
        micros = self.micros(phase, step)
        for number, micro in enumerate(micros, start=1):
            with contextlib.nullcontext() if number == len(micros) else self.accelerator.no_sync(self.model):
                loss, terms = self.loss(micro)
                self.accelerator.backward(loss)
            sums.update(terms)
        if self.args.max_grad_norm:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = phase.rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stage(self, folder: Path) -> None:
        if ranks.owns(self.output_dir):
            folder.mkdir(parents=True)
            for name, part in self.parts.items():
                torch.save(part.state_dict(), folder / f"{name}.pt")
