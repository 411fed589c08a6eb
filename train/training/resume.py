"""Which checkpoint to go on from: the newest one that is whole on every node."""

from __future__ import annotations

import shutil
from pathlib import Path

from training import checkpoint, ranks
from training.errors import RecipeError


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
    """The newest checkpoint that verifies on all ranks; each worse one is reported.

    A node that lacks what the others have is an error: starting afresh in silence, or from
    different checkpoints, would spoil the run.
    """
    names = ranks.gather([path.name for path in checkpoint.saved_in(folder)])
    everywhere = set(names[0]).intersection(*names)
    candidates = sorted({name for rank in names for name in rank}, key=lambda n: -int(n[11:]))
    for name in candidates:
        lacking = [rank for rank, held in enumerate(names) if name not in held]
        problems = [f"not on the node of ranks {lacking}"] if name not in everywhere else []
        problems = problems or [found for found in ranks.gather(checked(folder / name)) if found]
        if not problems:
            return folder / name
        ranks.note(f"{name} is not used: {problems[0]}.")
    if candidates:
        raise RecipeError(
            f"none of the {len(candidates)} checkpoints in {folder} can be used; repair them, or "
            "pass --overwrite_output_dir to start anew.",
            shared=True,
        )
    return None


def checked(path: Path) -> str | None:
    problem = checkpoint.problem_with(path)
    if problem or checkpoint.facts_of(path).get("world_size") != ranks.world_size():
        return problem
    rng = path / ("rng_state.pth" if ranks.world_size() == 1 else f"rng_state_{ranks.rank()}.pth")
    return None if rng.is_file() else f"{rng.name} is missing"


def tell(path: Path | None) -> None:
    if path is None:
        return
    written_by = checkpoint.facts_of(path).get("world_size")
    ranks.note(f"training goes on from {path.name}.")
    if written_by != ranks.world_size():
        ranks.note(
            f"{path.name} was written by {written_by} ranks, this run has {ranks.world_size()}: "
            "the order of the data differs from here on."
        )


def remove_newer(output_dir: Path, chosen: Path | None) -> None:
    """Checkpoints of a course that was given up must not be taken for this one's later."""
    step = checkpoint.step_of(chosen) if chosen else -1
    for path in checkpoint.saved_in(output_dir):
        if checkpoint.step_of(path) > step and checkpoint.problem_with(path) is None:
            ranks.note(f"{path.name} is removed: it lies after the point this run starts from.")
            shutil.rmtree(path)
