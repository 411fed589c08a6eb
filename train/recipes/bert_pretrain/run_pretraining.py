"""Pretrain BERT on prepared text in two phases, on one or more ranks.

Phase 2 continues with the final weights and LAMB moments of phase 1 and restarts only the
learning rate schedule. Steps and checkpoints are numbered across both phases.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

from orch_training import speed_up_imports

speed_up_imports()

import torch
from orch_node import preemption
from orch_training import RecipeError, checkpoint, kernels, ranks
from orch_training.arguments import ModelArguments
from orch_training.events import report_computation, report_decision
from orch_training.global_batch import describe_dealing
from orch_training.gradients import IN_BUCKETS, LocalSteps, compress
from orch_training.metrics import Course
from orch_training.models import load_tokenizer
from orch_training.provenance import Provenance, provenance_of
from orch_training.resume import start_from
from orch_training.script import run_script, save_model, write_results
from orch_training.snapshot import Snapshots, prepare_output
from pretrain_config import Phase, PretrainArguments, parse_arguments, phases_of
from pretrain_data import Sequences, manifest_of, prepared
from pretrain_model import Lamb, Losses, fresh_model, groups_of
from torch.nn.parallel import DistributedDataParallel
from transformers import set_seed


def main() -> int:
    """Run the recipe and return its exit code."""
    return run_script(lambda: run(parse_arguments(sys.argv[1:])))


def run(args: PretrainArguments) -> None:
    """Pretrain a model, then save it and the results."""
    # ranks
    ranks.join()
    phases = phases_of(args)
    output_dir = Path(args.output_dir)
    prepare_output(output_dir)

    # data
    data_dir = Path(args.data_dir) if args.data_dir else prepared(args)
    model_args = ModelArguments(
        model_name_or_path=args.tokenizer_name, cache_dir=args.cache_dir, model_revision=args.model_revision
    )
    with ranks.raise_together():
        tokenizer = load_tokenizer(model_args)
        data = [Sequences(data_dir, phase.length, args.seed, tokenizer) for phase in phases]

        # model
        model = fresh_model(args, len(tokenizer), phases)

    # loop
    if ranks.planned_world_size() != ranks.world_size():
        for phase in phases:
            report_decision(describe_dealing(phase.dealing, f"as asked for phase {phase.number}"))
    provenance = provenance_of(__file__, model_args, {"training data": [manifest_of(data_dir)]}, args)
    summary = Pretraining(args, model, phases, data, provenance).run()

    # save
    save_model(model, tokenizer, output_dir / "model", writes=ranks.is_main())
    write_results(output_dir, summary)


class Pretraining:
    """The training loop and the state to resume it from any of its checkpoints."""

    def __init__(
        self,
        args: PretrainArguments,
        model: Any,
        phases: Sequence[Phase],
        data: Sequence[Sequences],
        provenance: Provenance,
    ) -> None:
        self.args, self.phases, self.data, self.provenance = args, phases, data, provenance
        self.optimizer = Lamb(
            groups_of(model, args.weight_decay), lr=args.learning_rate, max_grad_norm=args.max_grad_norm
        )
        self.snapshots = Snapshots(
            output_dir=Path(args.output_dir),
            parts={"model": model, "optimizer": self.optimizer},
            limit=args.save_total_limit,
            facts=provenance.facts,
        )
        losses = Losses(model)
        self.model = DistributedDataParallel(losses, **IN_BUCKETS) if ranks.has_group() else losses
        compress(self.model, args.gradient_compression)
        self.local_steps = LocalSteps(self.model, self.optimizer, args.local_sgd)
        self.steps = phases[-1].last

    def run(self) -> dict[str, Any]:
        """Train the model in place and return the speed and the loss of each phase."""
        # With equal seeds, all ranks would drop the same units for different sequences.
        set_seed(self.args.seed + ranks.rank())
        step = self.start()
        self.local_steps.resume(step)
        course = Course(Path(self.args.output_dir), samples_per_step=self.phases[0].batch, start_step=step)
        self.model.train()
        if step >= self.steps:
            course.begin(step, self.steps)
        for phase, data in zip(self.phases, self.data, strict=True):
            if step < phase.last:
                course.samples_per_step = phase.batch
                course.begin(step, self.steps, f"phase {phase.number}")
                step = self.run_phase(phase, data, step, course)
        course.close()
        return self.summary(course, step)

    def start(self) -> int:
        """Load the newest checkpoint, if any, and return its step.

        Raises:
            RecipeError: if phase 2 has no last checkpoint of phase 1 to start from.
        """
        start_checkpoint = start_from(self.args.resume, self.snapshots.output_dir, self.provenance)
        first_step = self.phases[0].before
        if start_checkpoint is None and self.args.init_checkpoint:
            start_checkpoint = Path(self.args.init_checkpoint)
            problem = checkpoint.find_problem(start_checkpoint)
            if problem or checkpoint.step_of(start_checkpoint) != first_step:
                reason = problem or f"phase 1 ends with checkpoint-{first_step}"
                raise RecipeError(f"--init_checkpoint {start_checkpoint}: {reason}.", shared=True)
        if start_checkpoint:
            self.snapshots.load(start_checkpoint)
        step = checkpoint.step_of(start_checkpoint) if start_checkpoint else 0
        if step < first_step:
            raise RecipeError(
                f"phase 2 needs the last checkpoint of phase 1, checkpoint-{first_step}: pass "
                "--init_checkpoint, or the same --output_dir.",
                shared=True,
            )
        report_computation(bf16=self.args.bf16, optimizer="lamb", kernels=kernels.settle(start_checkpoint))
        return step

    def run_phase(self, phase: Phase, data: Sequences, step: int, course: Course) -> int:
        """Train the remaining steps of a phase and return the last step."""
        sums = [0.0] * 4  # of losses and of what they are sums over, since the last line of metrics
        while step < phase.last:
            rate = phase.rate(step + 1)
            sums = [a + b for a, b in zip(sums, self.step(phase, data, step + 1, rate), strict=True)]
            step += 1
            preempted = preemption.requested() and step < self.steps
            due = bool(self.args.save_steps) and step % self.args.save_steps == 0
            saves = due or preempted or step == phase.last
            logs = saves or step % self.args.logging_steps == 0 or step == phase.before + 1
            if logs:
                epoch = (step - phase.before) * phase.batch / data.total
                course.log(step, epoch=epoch, learning_rate=rate, **mean_losses(sums, phase.number))
                sums = [0.0] * 4
            course.after_step(step, logs=logs)
            if saves:
                self.local_steps.average_weights()
                self.snapshots.save(step, self.steps)
            if preempted:
                preemption.end(step)
        return step

    def step(self, phase: Phase, data: Sequences, step: int, rate: float) -> tuple[float, float, float, float]:
        """Compute one step and update the weights.

        The loss is the mean over all masked tokens of the step, however they are divided, so that
        it depends neither on the number of ranks nor on that of micro batches.

        Returns:
            This rank's summed losses of masked tokens and of next-sentence prediction, and the
            numbers of masked tokens and of sequences that they are sums over.
        """
        start = (step - 1 - phase.before) * phase.batch
        parts = phase.dealing.parts(range(start, start + phase.batch), ranks.rank())
        micros = [data.batch(part.positions.start, len(part.positions)) for part in parts]
        counts = [len(part.positions) if part.weight else 0 for part in parts]
        masked = sum(len(m["labels"]) for m, count in zip(micros, counts, strict=True) if count)
        token_weight = ranks.world_size() / ranks.sum_over_ranks(masked)  # DDP averages over the ranks
        next_weight = ranks.world_size() / phase.batch
        token_loss = next_loss = 0.0
        for index, (micro, count) in enumerate(zip(micros, counts, strict=True)):
            # Gradients are reduced after the last micro batch.
            reduces = index == len(micros) - 1 or not ranks.has_group()
            with (
                contextlib.nullcontext() if reduces else self.model.no_sync(),
                torch.autocast("cpu", torch.bfloat16, enabled=self.args.bf16),
            ):
                micro_token_loss, micro_next_loss = self.model(micro)
                loss = micro_token_loss * token_weight + micro_next_loss * next_weight
                (loss if count else loss * 0).backward()
            if count:
                token_loss += float(micro_token_loss.detach())
                next_loss += float(micro_next_loss.detach())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return token_loss, next_loss, float(masked), float(sum(counts))

    def summary(self, course: Course, step: int) -> dict[str, Any]:
        """Return the result of the run.

        The first and last losses come from the metrics file, which also has the steps of earlier
        processes of the run.
        """
        lines = (
            [json.loads(line) for line in (Path(self.args.output_dir) / "metrics.jsonl").read_text().splitlines()]
            if ranks.is_main()
            else []
        )
        phase_losses = {
            f"loss, phase {phase.number}": [
                float("nan") if x["loss"] is None else x["loss"] for x in lines if x["phase"] == phase.number
            ]
            for phase in self.phases
        }
        return {
            "world_size": ranks.world_size(),
            "output_dir": self.args.output_dir,
            "model_dir": str(Path(self.args.output_dir) / "model"),
            "before": {name: losses[0] for name, losses in phase_losses.items() if losses},
            "after": {name: losses[-1] for name, losses in phase_losses.items() if losses},
            **course.summary(step),
        }


def mean_losses(sums: Sequence[float], phase: int) -> dict[str, Any]:
    """Return the mean losses over all ranks from the sums of each."""
    token_loss, next_loss, masked, sequences = (sum(part) for part in zip(*ranks.gather(sums), strict=True))
    mlm, nsp = token_loss / masked, next_loss / sequences
    return {"loss": mlm + nsp, "mlm_loss": mlm, "nsp_loss": nsp, "phase": phase}


if __name__ == "__main__":
    sys.exit(main())
