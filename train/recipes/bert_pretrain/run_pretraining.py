"""Pretrain BERT on prepared text in two phases, on one or more ranks.

Phase 2 continues with the final weights and LAMB moments of phase 1 and restarts only the
learning rate schedule. Steps and checkpoints are numbered across both phases.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

from orch_training import speed_up_imports

speed_up_imports()

from orch_training import RecipeError, checkpoint, describe, kernels, ranks
from orch_training.arguments import parse
from orch_training.batches import describe_dealing
from orch_training.loop import Loop, make_accelerator
from orch_training.metrics import FILE
from orch_training.models import load_tokenizer
from orch_training.provenance import FACT, provenance_of
from orch_training.resume import prepare_output, start_from
from orch_training.script import run_script, save_model, write_results
from pretrain_config import PretrainArguments, PretrainPhase, phases_of
from pretrain_data import Sequences, manifest_of, prepared
from pretrain_model import Lamb, Losses, fresh_model, groups_of


def run(args: PretrainArguments) -> None:
    """Pretrain a model, then save it and the results."""
    # ranks: accelerate joins them here unless they have joined already
    kernels.configure_ipex(use=False)
    accelerator = make_accelerator(args)
    phases = phases_of(args)
    output_dir = Path(args.output_dir)
    prepare_output(output_dir)

    # data
    data_dir = Path(args.data_dir) if args.data_dir else prepared(args)
    with ranks.raise_together():
        tokenizer = load_tokenizer(args)
        data = [Sequences(data_dir, phase.length, args.seed, tokenizer) for phase in phases]

        # model
        model = fresh_model(args, len(tokenizer), phases)

    # loop
    if ranks.planned_world_size() != ranks.world_size():
        for phase in phases:
            ranks.report_decision(describe_dealing(phase.dealing, f"as asked for {phase.name}"))
    provenance = provenance_of(__file__, args, {"training data": [manifest_of(data_dir)]}, args)
    start = checkpoint_to_start_from(args, phases[0].before, provenance)
    optimizer = Lamb(groups_of(model, args.weight_decay), lr=args.learning_rate)
    rows, facts = dict(zip(phases, data, strict=True)), {FACT: provenance}
    training = Pretraining(args, accelerator, phases, rows, optimizer, model=model, trained=Losses(model), facts=facts)
    figures = training.run(start, "lamb")
    summary = {"world_size": ranks.world_size(), "output_dir": args.output_dir, **losses(output_dir, phases), **figures}

    # save
    save_model(model, tokenizer, output_dir / "model")
    write_results(output_dir, {**summary, "model_dir": str(output_dir / "model")})


def checkpoint_to_start_from(args: PretrainArguments, first_step: int, provenance: dict[str, Any]) -> Path | None:
    """Return the checkpoint to start from, if any.

    Raises:
        RecipeError: if phase 2 has no last checkpoint of phase 1 to start from.
    """
    start = start_from(args.resume, Path(args.output_dir), provenance)
    if start is None and args.init_checkpoint:
        start = Path(args.init_checkpoint)
        problem = checkpoint.find_problem(start)
        if problem or checkpoint.step_of(start) != first_step:
            reason = problem or f"phase 1 ends with checkpoint-{first_step}"
            raise RecipeError(f"--init_checkpoint {start}: {reason}.")
    if (checkpoint.step_of(start) if start else 0) < first_step:
        raise RecipeError(describe("no-phase-1", step=first_step))
    return start


def losses(output_dir: Path, phases: Sequence[PretrainPhase]) -> dict[str, dict[str, float]]:
    """Return the first and the last loss of each phase, from the metrics of all processes of the run."""
    lines = [json.loads(line) for line in (output_dir / FILE).read_text().splitlines()] if ranks.is_main() else []
    ends: dict[str, dict[str, float]] = {"before": {}, "after": {}}
    for line in lines:
        if line["phase"] in {phase.number for phase in phases}:
            name, loss = f"loss, phase {line['phase']}", float("nan") if line["loss"] is None else line["loss"]
            ends["before"].setdefault(name, loss)
            ends["after"][name] = loss
    return ends


class Pretraining(Loop):
    """The training in phases, which resumes from any of its checkpoints."""

    def micros(self, phase: PretrainPhase, step: int) -> Sequence[tuple[dict[str, Any], float, float]]:
        """Return micro batches with the weights of their losses.

        The loss is the mean over all masked tokens of the step, however they are divided, so that it depends neither
        on the number of ranks nor on that of micro batches.
        """
        start = (step - 1 - phase.before) * phase.batch
        parts = phase.dealing.parts(range(start, start + phase.batch), ranks.rank())
        batches = [self.data[phase].batch(part.positions.start, len(part.positions)) for part in parts]
        masked = sum(len(batch["labels"]) for part, batch in zip(parts, batches, strict=True) if part.weight)
        # DDP averages over the ranks.
        weights = (ranks.world_size() / sum(ranks.gather(masked)), ranks.world_size() / phase.batch)
        return [(batch, *(weights if part.weight else (0.0, 0.0))) for part, batch in zip(parts, batches, strict=True)]

    def loss(self, micro: tuple[dict[str, Any], float, float]) -> tuple[Any, dict[str, float]]:
        batch, token_weight, next_weight = micro
        token_loss, next_loss = self.model(batch)
        loss = token_loss * token_weight + next_loss * next_weight
        if not next_weight:
            return loss, {}
        terms = {"token_loss": float(token_loss.detach()), "next_loss": float(next_loss.detach())}
        return loss, {**terms, "masked": len(batch["labels"]), "sequences": len(batch["is_random_next"])}

    def figures(self, phase: PretrainPhase, step: int, sums: Mapping[str, float]) -> dict[str, Any]:
        mlm, nsp = sums["token_loss"] / sums["masked"], sums["next_loss"] / sums["sequences"]
        epoch = (step - phase.before) * phase.batch / self.data[phase].total
        return {"epoch": epoch, "loss": mlm + nsp, "mlm_loss": mlm, "nsp_loss": nsp, "phase": phase.number}


if __name__ == "__main__":
    sys.exit(run_script(lambda: run(*parse(sys.argv[1:], (PretrainArguments,)))))
