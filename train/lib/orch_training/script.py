"""The frame of a recipe's script: exit codes, evaluation in batches, and the files with the model and the results."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from orch_node.events import PIPE, report, send
from orch_node.protocol.events import Raised
from transformers.utils.logging import disable_progress_bar

from orch_training import RecipeError, checkpoint, ranks
from orch_training.metrics import Progress


def run_script(run: Callable[[], None]) -> int:
    """Run a recipe and return its exit code.

    A process group that `run` created is destroyed. If garbage collection was off during imports, it is enabled and
    excludes the imported objects.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    if not sys.stderr.isatty():
        disable_progress_bar()  # of loading and saving weights
    owns_group = not (dist.is_available() and dist.is_initialized())
    code = 0
    try:
        run()
    except (RecipeError, OSError) as error:  # OSError: a full disk, a folder that vanished
        send(Raised(text=f"error: {error}"))
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = getattr(error, "code", 1)
    if owns_group and dist.is_available() and dist.is_initialized():
        if code:  # gloo often cannot destroy a group after an error
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        gc.collect()  # deletes the model's DDP wrapper; otherwise gloo sometimes aborts at exit
        dist.destroy_process_group()
    return code


def score_in_batches(
    args: Any, model: Any, rows: Sequence[Any], score: Callable[[Any], Iterable[Any]], phase: str
) -> list[Any]:
    """Return the scores of this rank's rows, which the model computes without dropout and gradients.

    Args:
        args: have per_device_eval_batch_size and bf16.
        model: the model, not wrapped in DDP.
        rows: the inputs of this rank, ordered by length so that rows in a batch need little padding.
        score: returns the scores of a batch of rows.
        phase: the name under which progress is reported.
    """
    batch_size = args.per_device_eval_batch_size
    starts = range(0, len(rows), batch_size)
    progress = Progress(phase, len(starts))
    scores: list[Any] = []
    was_training = model.training
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
        for number, start in enumerate(starts, start=1):
            scores += score(rows[start : start + batch_size])
            progress.report(number, now=number == len(starts))
    model.train(was_training)
    return scores


def train_and_evaluate(
    args: Any,
    model: Any,
    tokenizer: Any,
    train: Callable[[], dict[str, Any]],
    evaluate: Callable[[str], tuple[dict[str, float], float]],
) -> None:
    """Train and evaluate a model as the arguments request, and save it and the results.

    Args:
        args: have do_train, do_eval, evaluate_before_training, resume and output_dir. A resumed run reads the scores of
            the untrained model from a file.
        model: the model, not wrapped in DDP.
        tokenizer: of the model.
        train: trains the model in place, and returns figures for the results.
        evaluate: returns scores in percent and the speed of an evaluation with the name of its phase.
    """
    output_dir = Path(args.output_dir)
    summary: dict[str, Any] = {"world_size": ranks.world_size(), "output_dir": str(output_dir)}
    if args.do_train:
        if args.evaluate_before_training and args.do_eval:
            file = output_dir / "before.json"
            resumed = args.resume != "none" and bool(checkpoint.list_checkpoints(output_dir))
            recorded_scores = ranks.from_main(checkpoint.read_json(file) if resumed else None)
            summary["before"] = recorded_scores or evaluate("evaluate before")[0]
            if ranks.is_main():
                checkpoint.write_json(file, summary["before"])
        summary |= train()
        save_model(model, tokenizer, output_dir / "model")
        summary["model_dir"] = str(output_dir / "model")
    if args.do_eval:
        summary["after"], speed = evaluate("evaluate after")
        summary["eval_samples_per_second"] = round(speed, 3)
    write_results(output_dir, summary, units=dict.fromkeys(summary.get("after", summary.get("before", ())), "%"))


def save_model(model: Any, tokenizer: Any, target: Path) -> None:
    """Save the model and its tokenizer on rank 0, atomically like a checkpoint.

    Raises:
        RecipeError: on all ranks, if one of them cannot write.
    """
    staged = target.with_name(f".{target.name}-staging")
    with checkpoint.written_together(target.name, target.parent):
        if ranks.is_main():
            model.save_pretrained(staged)
            tokenizer.save_pretrained(staged)
            checkpoint.seal(staged)
            checkpoint.publish(staged, target)


def write_results(output_dir: Path, summary: Mapping[str, Any], **fields: Mapping[str, str]) -> None:
    """Write results.json on rank 0, report it with these fields, and print it unless orch shows the result."""
    if ranks.is_main():
        checkpoint.write_json(output_dir / "results.json", checkpoint.without_nan(summary))
        report("result", **fields, **summary)
        if PIPE not in os.environ:  # orch prints the result of the ranks that it has started
            print("\n".join(f"{name}: {value}" for name, value in summary.items()), flush=True)
