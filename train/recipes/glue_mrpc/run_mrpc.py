"""Fine-tune a model to detect paraphrases, on one or more ranks.

Follows accelerate's nlp_example: Accelerator, AdamW, a linear schedule with warm-up.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

from orch_training import speed_up_imports

speed_up_imports()

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from orch_node import preemption
from orch_training import arguments, checkpoint, kernels, ranks
from orch_training.arguments import GroupingArguments, LoopArguments, ModelArguments, option
from orch_training.events import report_computation
from orch_training.gradients import IN_BUCKETS, LocalSteps, compress
from orch_training.metrics import Course
from orch_training.models import load_model, load_tokenizer, sequence_length
from orch_training.provenance import Provenance, provenance_of
from orch_training.resume import divide_batch, start_from
from orch_training.script import run_script, save_model, scores_before, write_results
from orch_training.shuffling import WEIGHT, EpochSampler, Grouping, Micros, loader, weighted
from orch_training.snapshot import Snapshots, prepare_output
from pairs import Judge, PairArguments, load_rows
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    get_linear_schedule_with_warmup,
    set_seed,
)

LENGTH_MULTIPLE = 16  # fewer distinct shapes need less memory
SCORES = "accuracy {accuracy:.2f}  F1 {f1:.2f}"


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
    optim: Literal["adamw_torch", "adamw_torch_fused"] = option("adamw_torch_fused", "Implementation of AdamW.")
    max_grad_norm: float = option(0.0, "Clip the gradients to this norm; 0: no clipping.")
    use_ipex: bool = option(False, "Use IPEX (accelerate before 1.8).")


def parse_arguments(argv: list[str]) -> tuple[ModelArguments, PairArguments, MrpcArguments]:
    """Parse and check the arguments, as far as is possible without reading a file.

    Raises:
        ArgumentError: if an argument is unknown or invalid.
    """
    model, data, args = arguments.parse(argv, (ModelArguments, PairArguments, MrpcArguments))
    arguments.check_requirements(
        [
            *arguments.task_requirements(model, data, args),
            (args.num_train_epochs < 1, "--num_train_epochs must be at least 1."),
            (args.max_steps is not None and args.max_steps < 1, "--max_steps must be at least 1."),
            *args.requirements(),
        ]
    )
    return model, data, args


def main() -> int:
    """Run the recipe and return its exit code."""
    return run_script(lambda: run(*parse_arguments(sys.argv[1:])))


def run(model_args: ModelArguments, data: PairArguments, args: MrpcArguments) -> None:
    """Train and evaluate a model, then save it and the results."""
    # ranks: accelerate joins them here unless they have joined already
    output_dir = Path(args.output_dir)
    args.optim = kernels.configure_ipex(args.use_ipex, args.optim)
    accelerator = Accelerator(
        cpu=True, mixed_precision=args.mixed_precision, kwargs_handlers=[DistributedDataParallelKwargs(**IN_BUCKETS)]
    )
    prepare_output(output_dir)

    # data, model
    with ranks.raise_together():
        tokenizer = load_tokenizer(model_args)
        model = load_model(AutoModelForSequenceClassification, model_args, args.seed)
        length = sequence_length(data.max_seq_length, tokenizer, model)
        train = load_rows(data, "train", tokenizer, length) if args.do_train else []
        validation = load_rows(data, "validation", tokenizer, length) if args.do_eval else []
    provenance = provenance_of(
        __file__, model_args, {"training data": train, "evaluation data": validation}, *(model_args, data, args)
    )
    collate = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=LENGTH_MULTIPLE)
    size = args.per_device_eval_batch_size
    judge = Judge(rows=validation, collate=collate, batch_size=size, bf16=args.bf16)

    # loop
    summary: dict[str, Any] = {"world_size": ranks.world_size(), "output_dir": str(output_dir)}
    if args.do_train:
        if args.evaluate_before_training and args.do_eval:
            summary["before"] = scores_before(
                output_dir, args.resume, lambda: judge.scores(model, "evaluate before")[0]
            )
        training = Training(args, accelerator, model, train, collate, provenance)
        report_computation(bf16=args.bf16, optimizer=args.optim, kernels=kernels.settle(training.start))
        summary |= training.run()

    # save
    if args.do_train:
        save_model(model, tokenizer, output_dir / "model", writes=ranks.is_main())
        summary["model_dir"] = str(output_dir / "model")
    if args.do_eval:
        summary["after"], speed = judge.scores(model, "evaluate after")
        summary["eval_samples_per_second"] = round(speed, 3)
    lines = [f"{when}: {SCORES.format(**summary[when])}" for when in ("before", "after") if when in summary]
    write_results(output_dir, summary, lines, units={"accuracy": "%", "f1": "%"})


class Training:
    """The training loop and the state to resume it from any of its checkpoints."""

    def __init__(
        self,
        args: MrpcArguments,
        accelerator: Accelerator,
        model: Any,
        rows: Sequence[dict[str, Any]],
        collate: DataCollatorWithPadding,
        provenance: Provenance,
    ) -> None:
        self.args, self.accelerator, output_dir = args, accelerator, Path(args.output_dir)
        self.start = start_from(args.resume, output_dir, provenance)
        self.dealing = divide_batch(
            self.start, micro=args.per_device_train_batch_size, accumulation=args.gradient_accumulation_steps
        )
        self.dealing.batch.check_filled(len(rows), "pairs")
        lengths = [len(row["input_ids"]) for row in rows]
        grouping = Grouping(lengths, self.dealing.batch.size) if args.length_grouping else None
        self.order = EpochSampler(len(rows), args.seed, grouping)
        self.micros = Micros(self.order, self.dealing, ranks.rank())
        # With a separate generator, the start of an epoch does not change the dropout masks.
        self.loader = loader(rows, self.micros, collate, generator=torch.Generator())
        self.steps_per_epoch = self.micros.steps
        self.steps = args.max_steps or args.num_train_epochs * self.steps_per_epoch
        optimizer = kernels.adamw(model.parameters(), args.optim, lr=args.learning_rate, weight_decay=args.weight_decay)
        # The schedule is not prepared by accelerate, which would step it once per rank.
        self.schedule = get_linear_schedule_with_warmup(optimizer, args.warmup_steps, self.steps)
        self.snapshots = Snapshots(
            output_dir=output_dir,
            parts={"model": model, "optimizer": optimizer, "schedule": self.schedule},
            limit=args.save_total_limit,
            facts={**self.dealing.batch.facts, **provenance.facts},
        )
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        compress(self.model, args.gradient_compression)
        self.local_steps = LocalSteps(self.model, optimizer, args.local_sgd)

    def run(self) -> dict[str, Any]:
        """Train the model in place and return the speed, the steps and the last loss."""
        args = self.args
        # With equal seeds, all ranks would drop the same units for different pairs.
        set_seed(args.seed + ranks.rank())
        if self.start:
            self.snapshots.load(self.start)
        step = checkpoint.step_of(self.start) if self.start else 0
        self.local_steps.resume(step)
        course = Course(Path(args.output_dir), samples_per_step=self.dealing.batch.size, start_step=step)
        course.begin(step, self.steps)
        self.model.train()
        while step < self.steps:
            step = self.epoch(step, course)
        course.close()
        self.accelerator.free_memory()
        return course.summary(step)

    def epoch(self, step: int, course: Course) -> int:
        """Train the remaining steps of an epoch and return the last step."""
        self.order.epoch, self.micros.first = divmod(step, self.steps_per_epoch)
        losses: list[float] = []
        for number, micro in enumerate(self.loader, start=1):
            last = number % self.dealing.micro_batches == 0
            losses.append(self.learn(micro, last=last))
            if last:
                step += 1
                losses = [] if self.after_step(step, losses, course) else losses
            if step >= self.steps:
                break
        return step

    def learn(self, micro: dict[str, Any], *, last: bool) -> float:
        """Train on a micro batch; synchronize gradients and update after the `last` one of a step."""
        weight = micro.pop(WEIGHT)
        with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
            loss = weighted(self.model(**micro).loss, weight)
            self.accelerator.backward(loss)
        if last:
            if self.args.max_grad_norm:
                self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return float(loss.detach())

    def after_step(self, step: int, losses: Sequence[float], course: Course) -> bool:
        """Log metrics and save a checkpoint if they are due; return whether metrics were logged."""
        rate = self.schedule.get_last_lr()[0]  # of the completed step
        self.schedule.step()
        last = step >= self.steps
        preempted = preemption.requested() and not last
        due = bool(self.args.save_steps) and (last or step % self.args.save_steps == 0)
        saves = due or preempted
        epoch_ends = step % self.steps_per_epoch == 0
        logs = saves or last or epoch_ends or step % self.args.logging_steps == 0
        if logs:
            means = ranks.gather(sum(losses) * self.dealing.micro_batches / len(losses))
            course.log(step, epoch=step / self.steps_per_epoch, loss=sum(means) / len(means), learning_rate=rate)
        course.after_step(step, logs=logs)
        if saves or last:
            self.local_steps.average_weights()
        if saves:
            self.snapshots.save(step, self.steps)
        if preempted:
            preemption.end(step)
        return logs


if __name__ == "__main__":
    sys.exit(main())
