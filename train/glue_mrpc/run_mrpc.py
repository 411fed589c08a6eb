"""Fine-tunes a model to tell whether two sentences say the same, on one rank or on many.

In the manner of accelerate's nlp_example: Accelerator, AdamW, a linear schedule with warm-up.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for the package `training`

import torch
from accelerate import Accelerator
from judging import Judge
from mrpc_config import Config, MrpcArguments, parse_arguments
from pairs import Collator, load_pairs, tokenized
from torch.utils.data import DataLoader
from training import checkpoint, ranks
from training.errors import RecipeError
from training.events import report
from training.metrics import Course
from training.models import load_model, load_tokenizer, save_model, sequence_length
from training.script import run_script
from training.shuffling import EpochSampler
from training.snapshot import Snapshots, prepare_output
from transformers import (
    AutoModelForSequenceClassification,
    get_linear_schedule_with_warmup,
    set_seed,
)


def main() -> int:
    return run_script(lambda: run(parse_arguments(sys.argv[1:])))


def run(config: Config) -> None:
    # ranks: those that are joined already, or accelerate joins them
    loop, output_dir = config.loop, Path(config.loop.output_dir)
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=loop.mixed_precision,
        gradient_accumulation_steps=loop.gradient_accumulation_steps,
    )
    owner = prepare_output(output_dir)

    # data, model
    with ranks.together():
        tokenizer = load_tokenizer(config.model)
        length = sequence_length(config.data.max_seq_length, tokenizer)
        train, validation = load_rows(config, tokenizer, length)
        model = load_model(
            AutoModelForSequenceClassification, config.model, loop.seed, num_labels=2
        )
    collate = Collator(tokenizer)
    size = loop.per_device_eval_batch_size
    judge = Judge(rows=validation, collate=collate, batch_size=size, bf16=loop.bf16)

    # loop
    summary: dict[str, Any] = {"world_size": ranks.world_size(), "output_dir": str(output_dir)}
    if loop.do_train:
        if loop.evaluate_before_training and loop.do_eval:
            summary["before"] = scores_before(model, judge, output_dir, loop.resume)
        summary |= Training(config.loop, accelerator, model, train, collate, owner=owner).run()

    # save
    if loop.do_train:
        with ranks.together():
            if ranks.is_main():
                save_model(model, tokenizer, output_dir / "model")
        summary["model_dir"] = str(output_dir / "model")
    if loop.do_eval:
        summary["after"], speed = judge.scores(model, "evaluate after")
        summary["eval_samples_per_second"] = round(speed, 3)
    finish(output_dir, summary)


def load_rows(
    config: Config, tokenizer: Any, length: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What to train on and what to evaluate, as tokens."""
    train = load_pairs(config.data, "train") if config.loop.do_train else []
    validation = load_pairs(config.data, "validation") if config.loop.do_eval else []
    return (
        tokenized(train[: config.data.max_train_samples], tokenizer, length) if train else [],
        tokenized(validation[: config.data.max_eval_samples], tokenizer, length)
        if validation
        else [],
    )


def scores_before(
    model: Any, judge: Judge, output_dir: Path, resume: str | None
) -> dict[str, float]:
    """Of the untrained model; a run that goes on from a checkpoint has them on file."""
    file = output_dir / "before.json"
    goes_on = resume != "none" and file.is_file() and bool(checkpoint.saved_in(output_dir))
    known = ranks.from_main(json.loads(file.read_text()) if goes_on else None)
    if known is not None:
        return dict(known)
    scores, _ = judge.scores(model, "evaluate before")
    ranks.note("before training: accuracy {accuracy:.2f}, F1 {f1:.2f}".format(**scores))
    if ranks.is_main():
        checkpoint.write_json(file, scores)
    return scores


class Training:
    """The loop, with what it needs to go on from any of its checkpoints."""

    def __init__(
        self,
        args: MrpcArguments,
        accelerator: Accelerator,
        model: Any,
        rows: Sequence[dict[str, Any]],
        collate: Collator,
        *,
        owner: bool,
    ) -> None:
        self.args, self.accelerator = args, accelerator
        self.sampler = EpochSampler(len(rows), args.seed)
        loader = DataLoader(
            rows,  # type: ignore[arg-type]
            sampler=self.sampler,
            batch_size=args.per_device_train_batch_size,
            collate_fn=collate,
            drop_last=True,  # accelerate would fill the last batch by repeating pairs
            generator=torch.Generator(),  # or each epoch's start takes from what dropout takes from
        )
        self.batches = len(loader) // ranks.world_size()
        self.check_enough(len(rows))
        self.steps_per_epoch = math.ceil(self.batches / args.gradient_accumulation_steps)
        self.steps = args.max_steps or args.num_train_epochs * self.steps_per_epoch
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay
        )
        # Not prepared: accelerate would step it once per rank.
        self.schedule = get_linear_schedule_with_warmup(optimizer, args.warmup_steps, self.steps)
        parts = {"model": model, "optimizer": optimizer, "schedule": self.schedule}
        self.snapshots = Snapshots(
            output_dir=Path(args.output_dir), owner=owner, parts=parts, limit=args.save_total_limit
        )
        self.model, self.optimizer, self.loader = accelerator.prepare(model, optimizer, loader)

    def check_enough(self, rows: int) -> None:
        if not self.batches:
            raise RecipeError(
                f"the training data has {rows} pairs; one batch over all ranks needs "
                f"{self.args.per_device_train_batch_size * ranks.world_size()}. Use a smaller "
                "--per_device_train_batch_size or fewer ranks.",
                shared=True,
            )

    def run(self) -> dict[str, Any]:
        """Trains the model in place; -> speed, steps and the last loss."""
        args = self.args
        # All ranks would drop the same units for different pairs if they had the same seed.
        set_seed(args.seed + ranks.rank())
        start = self.snapshots.start(args.resume)
        if start:
            self.snapshots.load(start)
        step = checkpoint.step_of(start) if start else 0
        per_rank = args.per_device_train_batch_size * args.gradient_accumulation_steps
        course = Course(
            Path(args.output_dir),
            samples_per_step=per_rank * ranks.world_size(),
            start_step=step,
        )
        course.begin(step, self.steps)
        self.model.train()
        while step < self.steps:
            step = self.epoch(step, course)
        course.close()
        self.accelerator.free_memory()
        return course.summary(step)

    def epoch(self, step: int, course: Course) -> int:
        """What is left of an epoch; -> the step after it."""
        self.sampler.epoch, done = divmod(step, self.steps_per_epoch)
        loader = self.accelerator.skip_first_batches(
            self.loader, done * self.args.gradient_accumulation_steps
        )
        losses: list[float] = []
        for batch in loader:
            with self.accelerator.accumulate(self.model):
                losses.append(self.learn(batch))
            if not self.accelerator.sync_gradients:
                continue
            step += 1
            if self.after_step(step, losses, course):
                losses = []
            if step >= self.steps:
                break
        return step

    def learn(self, batch: dict[str, Any]) -> float:
        loss = self.model(**batch).loss
        self.accelerator.backward(loss)
        if self.accelerator.sync_gradients and self.args.max_grad_norm:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def after_step(self, step: int, losses: Sequence[float], course: Course) -> bool:
        """Metrics and checkpoint where they are due; -> whether metrics were."""
        rate = self.schedule.get_last_lr()[0]  # of the step that was made
        self.schedule.step()
        last = step >= self.steps
        saves = bool(self.args.save_steps) and (last or step % self.args.save_steps == 0)
        epoch_ends = step % self.steps_per_epoch == 0
        logs = saves or last or epoch_ends or step % self.args.logging_steps == 0
        if logs:
            means = ranks.gather(sum(losses) / len(losses))
            course.log(
                step,
                epoch=step / self.steps_per_epoch,
                loss=sum(means) / len(means),
                learning_rate=rate,
            )
        course.after_step(step, logs=logs)
        if saves:
            self.snapshots.save(step, self.steps)
        return logs


def finish(output_dir: Path, summary: dict[str, Any]) -> None:
    if not ranks.is_main():
        return
    checkpoint.write_json(output_dir / "results.json", summary)
    report("result", **summary)
    for when in ("before", "after"):
        if when in summary:
            print("{}: accuracy {accuracy:.2f}  F1 {f1:.2f}".format(when, **summary[when]))


if __name__ == "__main__":
    sys.exit(main())
