"""Pretrains BERT from prepared text in two phases, on one rank or on many.

Phase 2 takes up the weights and LAMB's moments that phase 1 ended with; only the schedule starts
anew. Steps count over both phases, and so do the checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

from orch_training.imports import speed_up_imports

speed_up_imports()

import torch
from batches import Sequences
from lamb import Lamb, groups_of
from orch_node import preemption
from orch_training import checkpoint, decisions, dropout, ranks, resume
from orch_training.arguments import ModelArguments
from orch_training.compression import compress
from orch_training.errors import RecipeError
from orch_training.events import report
from orch_training.gradients import IN_BUCKETS
from orch_training.local_sgd import LocalSteps
from orch_training.metrics import Course
from orch_training.models import load_tokenizer, save_model
from orch_training.script import run_script
from orch_training.snapshot import Snapshots, prepare_output, start_from
from pretrain_config import Phase, PretrainArguments, parse_arguments, phases_of
from pretrain_model import Losses, fresh_model
from text_data import check_vocabulary, prepared
from torch.nn.parallel import DistributedDataParallel
from transformers import set_seed


def main() -> int:
    return run_script(lambda: run(parse_arguments(sys.argv[1:])))


def run(args: PretrainArguments) -> None:
    # ranks
    ranks.join()
    phases = phases_of(args)
    output_dir = Path(args.output_dir)
    owner = prepare_output(output_dir)

    # data
    data_dir = Path(args.data_dir) if args.data_dir else prepared(args)
    with ranks.raise_together():
        tokenizer = load_tokenizer(
            ModelArguments(
                model_name_or_path=args.tokenizer_name, cache_dir=args.cache_dir, model_revision=args.model_revision
            )
        )
        data = [Sequences(data_dir, phase.length, args.seed) for phase in phases]
        check_vocabulary(data, tokenizer, data_dir)

        # model
        model = fresh_model(args, len(tokenizer))

    # loop
    if ranks.planned_world_size() != ranks.world_size():
        for phase in phases:
            resume.report_dealing(phase.dealing, f"as asked for phase {phase.number}")
    summary = Pretraining(args, model, phases, data, owner=owner).run()

    # save
    with ranks.raise_together():
        if ranks.is_main():
            save_model(model, tokenizer, output_dir / "model")
            checkpoint.write_json(output_dir / "results.json", summary)
            report("result", **summary)


class Pretraining:
    """The loop, with what it needs to go on from any of its checkpoints."""

    def __init__(
        self, args: PretrainArguments, model: Any, phases: Sequence[Phase], data: Sequence[Sequences], *, owner: bool
    ) -> None:
        self.args, self.phases, self.data = args, phases, data
        self.optimizer = Lamb(
            groups_of(model, args.weight_decay), lr=args.learning_rate, max_grad_norm=args.max_grad_norm
        )
        self.snapshots = Snapshots(
            output_dir=Path(args.output_dir),
            owner=owner,
            parts={"model": model, "optimizer": self.optimizer},
            limit=args.save_total_limit,
        )
        losses = Losses(model)
        grouped = ranks.has_group()
        self.model = DistributedDataParallel(losses, **IN_BUCKETS) if grouped else losses
        compress(self.model, args.gradient_compression)
        self.local_steps = LocalSteps(self.model, self.optimizer, args.local_sgd)
        self.steps = phases[-1].last

    def run(self) -> dict[str, Any]:
        """Trains the model in place; -> speed, and the loss of each phase."""
        # All ranks would drop the same units for different sequences if they had the same seed.
        set_seed(self.args.seed + ranks.rank())
        step = self.start()
        course = Course(Path(self.args.output_dir), samples_per_step=self.phases[0].batch, start_step=step)
        self.model.train()
        for phase, data in zip(self.phases, self.data, strict=True):
            if step < phase.last:
                course.samples_per_step = phase.batch
                course.begin(step, self.steps, f"phase {phase.number}")
                step = self.run_phase(phase, data, step, course)
        course.close()
        return self.summary(course, step)

    def start(self) -> int:
        """Take up the newest checkpoint; -> its step. Phase 2 alone needs one of phase 1."""
        found = start_from(self.args.resume, self.snapshots.output_dir, owner=self.snapshots.owner)
        first = self.phases[0].before
        if found is None and self.args.init_checkpoint:
            found = Path(self.args.init_checkpoint)
            problem = checkpoint.find_problem(found)
            if problem or checkpoint.step_of(found) != first:
                reason = problem or f"phase 1 ends with checkpoint-{first}"
                raise RecipeError(f"--init_checkpoint {found}: {reason}.", shared=True)
        if found:
            self.snapshots.load(found)
        step = checkpoint.step_of(found) if found else 0
        if step < first:
            raise RecipeError(
                f"phase 2 needs the last checkpoint of phase 1, checkpoint-{first}: pass "
                "--init_checkpoint, or the same --output_dir.",
                shared=True,
            )
        decisions.report_computation(
            bf16=self.args.bf16,
            attention=self.args.attn_implementation,
            optimizer="lamb",
            dropout=dropout.settle(self.args.dropout_kernel, found),
        )
        return step

    def run_phase(self, phase: Phase, data: Sequences, step: int, course: Course) -> int:
        told = Told()
        while step < phase.last:
            rate = phase.rate(step + 1)
            told.add(*self.step(phase, data, step + 1, rate))
            step += 1
            makes_room = preemption.requested() and step < self.steps
            due = bool(self.args.save_steps) and step % self.args.save_steps == 0
            saves = due or makes_room or step == phase.last
            logs = saves or step % self.args.logging_steps == 0 or step == phase.before + 1
            if logs:
                epoch = (step - phase.before) * phase.batch / data.total
                course.log(step, epoch=epoch, learning_rate=rate, **told.means(phase.number))
            course.after_step(step, logs=logs)
            if saves:
                self.local_steps.average_weights()
                self.snapshots.save(step, self.steps)
            if makes_room:
                preemption.end(step)
        return step

    def step(self, phase: Phase, data: Sequences, step: int, rate: float) -> tuple[float, float, float, float]:
        """One step of LAMB; -> this rank's summed losses, and what they are sums over.

        The loss is the mean over all masked tokens of the step, however they are dealt out: so
        neither the number of ranks nor that of micro batches changes it.
        """
        start = (step - 1 - phase.before) * phase.batch
        parts = phase.dealing.parts(range(start, start + phase.batch), ranks.rank())
        micros = [data.batch(part.positions.start, len(part.positions)) for part in parts]
        counts = [len(part.positions) if part.weight else 0 for part in parts]
        masked = sum(len(m["labels"]) for m, count in zip(micros, counts, strict=True) if count)
        weight_words = ranks.world_size() / ranks.sum_over_ranks(masked)  # DDP divides by the ranks
        weight_next = ranks.world_size() / phase.batch
        words = next_ = 0.0
        for index, (micro, count) in enumerate(zip(micros, counts, strict=True)):
            with self.gathering(last=index == len(micros) - 1), self.precision():
                loss_words, loss_next = self.model(micro)
                loss = loss_words * weight_words + loss_next * weight_next
                (loss if count else loss * 0).backward()
            if count:
                words, next_ = words + float(loss_words.detach()), next_ + float(loss_next.detach())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return words, next_, float(masked), float(sum(counts))

    def gathering(self, *, last: bool) -> Any:
        """Gradients travel once per step, after the last micro batch."""
        if last or not isinstance(self.model, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.model.no_sync()

    def precision(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.args.bf16)

    def summary(self, course: Course, step: int) -> dict[str, Any]:
        """First and last losses come from the file of metrics, which outlives a process."""
        lines = (
            [json.loads(line) for line in (Path(self.args.output_dir) / "metrics.jsonl").read_text().splitlines()]
            if ranks.is_main()
            else []
        )
        found = {
            f"loss, phase {phase.number}": [x["loss"] for x in lines if x["phase"] == phase.number]
            for phase in self.phases
        }
        return {
            "world_size": ranks.world_size(),
            "output_dir": self.args.output_dir,
            "model_dir": str(Path(self.args.output_dir) / "model"),
            "before": {name: losses[0] for name, losses in found.items() if losses},
            "after": {name: losses[-1] for name, losses in found.items() if losses},
            **course.summary(step),
        }


class Told:
    """Sums since the last line of metrics."""

    def __init__(self) -> None:
        self.sums = [0.0] * 4

    def add(self, *values: float) -> None:
        self.sums = [a + b for a, b in zip(self.sums, values, strict=True)]

    def means(self, phase: int) -> dict[str, Any]:
        """Over all ranks; starts anew."""
        words, next_, masked, sequences = (sum(part) for part in zip(*ranks.gather(self.sums), strict=True))
        self.sums = [0.0] * 4
        mlm, nsp = words / masked, next_ / sequences
        return {"loss": mlm + nsp, "mlm_loss": mlm, "nsp_loss": nsp, "phase": phase}


if __name__ == "__main__":
    sys.exit(main())
