"""Scores, models and results of a recipe: computed by all ranks, written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from orch_training import checkpoint, ranks
from orch_training.errors import RecipeError
from orch_training.events import Progress, is_watched, report


def score_in_batches(
    model: Any, rows: Sequence[Any], score: Callable[[Any], Iterable[Any]], *, batch_size: int, bf16: bool, phase: str
) -> list[Any]:
    """Return the scores of this rank's rows, which the model computes without dropout and gradients.

    Args:
        model: the model, not wrapped in DDP.
        rows: the inputs of this rank, ordered by length so that rows in a batch need little padding.
        score: returns the scores of a batch of rows.
        batch_size: rows per batch.
        bf16: whether the model runs under autocast.
        phase: the name under which progress is reported.
    """
    starts = range(0, len(rows), batch_size)
    progress = Progress(phase, len(starts))
    scores: list[Any] = []
    was_training = model.training
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        for number, start in enumerate(starts, start=1):
            scores += score(rows[start : start + batch_size])
            progress.report(number, now=number == len(starts))
    model.train(was_training)
    return scores


def scores_before(folder: Path, resumed: bool, evaluate: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the scores of the untrained model; a resumed run reads them from its file.

    Args:
        folder: the folder of the file.
        resumed: whether this run resumes from a checkpoint.
        evaluate: computes the scores.
    """
    file = folder / "before.json"
    recorded_scores = ranks.from_main(checkpoint.read_json(file) if resumed else None)
    if recorded_scores is not None:
        return dict(recorded_scores)
    scores = evaluate()
    if ranks.is_main():
        checkpoint.write_json(file, scores)
    return scores


def save_model(model: Any, tokenizer: Any, target: Path, *, writes: bool) -> None:
    """Save the model and its tokenizer on the ranks that write, atomically like a checkpoint.

    Raises:
        RecipeError: on all ranks, if one of them cannot write.
    """
    staged = target.with_name(f".{target.name}-staging")
    with ranks.raise_together():
        if not writes:
            return
        try:
            model.save_pretrained(staged)
            tokenizer.save_pretrained(staged)
            checkpoint.seal(staged)
            checkpoint.publish(staged, target)
        except Exception as error:  # OSError, RuntimeError and safetensors' own, for a full disk
            reason = checkpoint.write_failure(error, target.parent)
            raise RecipeError(f"cannot save the model in {target}: {reason}.") from error


def write_results(
    output_dir: Path, summary: Mapping[str, Any], lines: Iterable[str] = (), **fields: Mapping[str, str]
) -> None:
    """Write results.json on rank 0, report it with these fields, and print the lines unless orch shows the result."""
    if not ranks.is_main():
        return
    checkpoint.write_json(output_dir / "results.json", summary)
    report("result", **fields, **summary)
    if not is_watched():
        for line in lines:
            print(line, flush=True)
