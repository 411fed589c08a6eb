"""Which checkpoint to go on from: the newest one that is whole on some node."""

from __future__ import annotations

import shutil
from pathlib import Path

from orch_training import checkpoint, copies, decisions, ranks
from orch_training.errors import RecipeError
from orch_training.global_batch import Dealing, global_batch, kept


def choose(wanted: str | None, output_dir: Path) -> Path | None:
    """`wanted`: "auto" (or None), "none", a checkpoint, or a folder that holds checkpoints."""
    if wanted == "none":
        return None
    if wanted in (None, "auto"):
        return newest_whole(output_dir)
    path = Path(str(wanted))
    if checkpoint.step_of(path) >= 0:
        return exactly(path)
    found = newest_whole(path)
    if found is None:
        raise RecipeError(f"--resume_from_checkpoint {path}: no checkpoint there.", code=2)
    return found


def exactly(path: Path) -> Path:
    with ranks.together():
        problem = checkpoint.problem_with(path)
        if problem:
            raise RecipeError(f"--resume_from_checkpoint {path}: {problem}.")
    return path


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint that verifies on some node, brought to the nodes that lack it.

    Each worse one is reported. If there are checkpoints and none is whole, that is an error:
    starting afresh in silence would spoil the run.
    """
    names = ranks.gather([path.name for path in checkpoint.saved_in(folder)])
    candidates = sorted({name for rank in names for name in rank}, key=lambda n: -int(n[11:]))
    for name in candidates:
        problems: list[str | None] = ranks.gather(checkpoint.problem_with(folder / name))
        whole = [rank for rank, problem in enumerate(problems) if problem is None]
        if whole:
            if len(whole) < len(problems):
                lacking = [rank for rank, problem in enumerate(problems) if problem]
                ranks.note(f"{name} of rank {whole[0]} is copied to the nodes of ranks {lacking}.")
                copies.share(folder / name, whole[0])
            return folder / name
        ranks.note(f"{name} is not used: {next(one for one in problems if one)}.")
    if candidates:
        raise RecipeError(
            f"none of the {len(candidates)} checkpoints in {folder} can be used; repair them, or "
            "pass --overwrite_output_dir to start anew.",
            shared=True,
        )
    return None


def tell(path: Path | None) -> None:
    if path is None:
        return
    written_by = checkpoint.facts_of(path).get("world_size")
    ranks.note(f"training goes on from {path.name}.")
    if written_by != ranks.world_size():
        ranks.note(
            f"{path.name} was written by {written_by} ranks, this run has {ranks.world_size()}: "
            "dropout differs from here on, the order of the data does not."
        )


def deal(start: Path | None, *, micro: int, accumulation: int) -> Dealing:
    """What a step trains on, and how these ranks compute it; told where it is not simply what the
    arguments say. `start`: the checkpoint that the run goes on from."""
    planned, world_size = ranks.planned(), ranks.world_size()
    facts = checkpoint.facts_of(start) if start else None
    batch = global_batch(micro=micro, accumulation=accumulation, planned=planned, facts=facts)
    dealing = Dealing(batch, world_size, micro)
    if batch.size != micro * accumulation * world_size:
        as_planned = batch.size == micro * accumulation * planned
        why = f"as planned for {planned} ranks" if as_planned else f"as in {start and start.name}"
        tell_kept(dealing, why)
    return dealing


def tell_kept(dealing: Dealing, why: str) -> None:
    decisions.tell(kept(dealing, why))


def remove_newer(output_dir: Path, chosen: Path | None) -> None:
    """Checkpoints of a course that was given up must not be taken for this one's later."""
    step = checkpoint.step_of(chosen) if chosen else -1
    for path in checkpoint.saved_in(output_dir):
        if checkpoint.step_of(path) > step and checkpoint.problem_with(path) is None:
            ranks.note(f"{path.name} is removed: it lies after the point this run starts from.")
            shutil.rmtree(path)
