"""Writes checkpoints of the whole state of a training loop, and resumes exactly from the newest valid one of any node.

The owner of each file system writes what all ranks share, and the random state of each rank, which determines dropout.
To resume, a checkpoint is copied to the nodes that lack it, if they share no disk.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from orch_training import ArgumentError, RecipeError, checkpoint, describe, kernels, ranks
from orch_training.batches import Dealing, describe_dealing, global_batch
from orch_training.metrics import Progress
from orch_training.provenance import check_provenance

CHUNK = 64 << 20  # bytes of a copied checkpoint that every rank holds at once


def start_from(requested: str | None, output_dir: Path, provenance: Mapping[str, Any]) -> Path | None:
    """Return the checkpoint to resume from, the same on all ranks; report it and remove newer ones.

    Newer checkpoints belong to an abandoned run; they must not be used later.

    Raises:
        RecipeError: if no checkpoint can be used, or this run has another provenance than its checkpoint.
    """
    start = choose(requested, output_dir)
    if start:
        if requested in (None, "auto"):
            check_provenance(provenance, start)
        ranks.note(f"training resumes from {start.name}.")
        written_by = checkpoint.facts_of(start).get("world_size")
        if written_by != ranks.world_size():
            values = {"writers": written_by, "plural": "s" * (written_by != 1), "ranks": ranks.world_size()}
            ranks.note(describe("other-ranks", checkpoint=start.name, **values))
    step = checkpoint.step_of(start) if start else -1
    for path in checkpoint.list_checkpoints(output_dir) if ranks.owns(output_dir) else ():
        if checkpoint.step_of(path) > step and checkpoint.find_problem(path) is None:
            ranks.note(f"{path.name} is removed because it is newer than the checkpoint that this run starts from.")
            shutil.rmtree(path)
    ranks.gather(None)
    return start


def choose(requested: str | None, output_dir: Path) -> Path | None:
    """Return the checkpoint to resume from, or None.

    Args:
        requested: "auto" (or None), "none", or a checkpoint.
        output_dir: the folder that "auto" searches.
    """
    if requested == "none":
        return None
    if requested in (None, "auto"):
        return newest_valid(output_dir)
    path = Path(str(requested))
    with ranks.raise_together():
        if checkpoint.step_of(path) < 0:
            raise ArgumentError(f"--resume_from_checkpoint {path} is not auto, none or a folder checkpoint-N.")
        if problem := checkpoint.find_problem(path):
            raise RecipeError(f"--resume_from_checkpoint {path}: {problem}.")
    return path


def newest_valid(folder: Path) -> Path | None:
    """Return the newest checkpoint that is valid on some node, after copying it to the nodes that lack it.

    Each invalid one is reported. If there are checkpoints but none is valid, an error is raised, because starting from
    the beginning would spoil the run.
    """
    names = ranks.gather([path.name for path in checkpoint.list_checkpoints(folder)])
    candidates = sorted({name for rank in names for name in rank}, key=lambda n: -int(n[11:]))
    for name in candidates:
        problems: list[str | None] = ranks.gather(checkpoint.find_problem(folder / name))
        valid = [rank for rank, problem in enumerate(problems) if problem is None]
        if valid:
            if len(valid) < len(problems):
                lacking = [rank for rank, problem in enumerate(problems) if problem]
                ranks.note(f"{name} of rank {valid[0]} is copied to the nodes of ranks {lacking}.")
                share(folder / name, valid[0])
            return folder / name
        ranks.note(f"{name} is not used: {next(filter(None, problems))}.")
    if candidates:
        raise RecipeError(describe("no-valid-checkpoint", count=len(candidates), folder=folder))
    return None


def share(folder: Path, source: int) -> None:
    """Copy the checkpoint of rank `source` to the nodes where it is missing or damaged."""
    writes = ranks.owns(folder.parent) and checkpoint.find_problem(folder) is not None
    staging = folder.parent / checkpoint.STAGING / folder.name
    manifest = (folder / checkpoint.MANIFEST).read_bytes() if ranks.rank() == source else b""
    manifest = ranks.broadcast_bytes(source, manifest)
    sizes = {name: entry["bytes"] for name, entry in json.loads(manifest)["files"].items()}
    for name, size in {**sizes, checkpoint.MANIFEST: len(manifest)}.items():
        if not checkpoint.is_below(name):
            raise RecipeError(f"{folder.name} of rank {source} names {name!r:.80} as its file.")
        for offset in range(0, max(1, size), CHUNK):
            chunk = ranks.broadcast_bytes(source, read(folder / name, offset) if ranks.rank() == source else b"")
            with checkpoint.written_together(folder.name, folder.parent):
                if writes:
                    (staging / name).parent.mkdir(parents=True, exist_ok=True)
                    with (staging / name).open("ab" if offset else "wb") as file:
                        file.write(chunk)
    with checkpoint.written_together(folder.name, folder.parent):
        if writes:
            checkpoint.publish(staging, folder)
            shutil.rmtree(staging.parent, ignore_errors=True)


def read(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(CHUNK)


def begin(args: Any, provenance: Mapping[str, Any], examples: int, noun: str) -> tuple[Path | None, Dealing]:
    """Return the checkpoint to resume from, and how the ranks divide a global batch, which is reported if it differs.

    Args:
        args: have resume, output_dir, per_device_train_batch_size and gradient_accumulation_steps.
        provenance: of this run.
        examples: in the training data.
        noun: what these are.
    """
    start = start_from(args.resume, Path(args.output_dir), provenance)
    micro, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    planned, world_size = ranks.planned_world_size(), ranks.world_size()
    facts = checkpoint.facts_of(start) if start else None
    batch = global_batch(micro=micro, accumulation=accumulation, planned=planned, facts=facts)
    if examples < batch.round_size:
        raise RecipeError(describe("too-few-examples", examples=examples, noun=noun, needed=batch.round_size))
    dealing = Dealing(batch, world_size, micro)
    if batch.size != micro * accumulation * world_size:
        as_planned = batch.size == micro * accumulation * planned
        planned_ranks = f"{planned} rank{'s' * (planned != 1)}"
        reason = f"as planned for {planned_ranks}" if as_planned else f"as in {start and start.name}"
        ranks.report_decision(describe_dealing(dealing, reason))
    return start, dealing


def load_numbers(path: Path) -> Any:
    """Return the content of a file of torch.save on the CPU, without running code from it: anybody may have written it.

    A checksum next to a file shows that it is complete, but not who wrote it.

    Raises:
        RecipeError: if it contains anything except numbers.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise RecipeError(describe("not-only-numbers", path=path)) from None


def save_checkpoint(args: Any, step: int, steps: int, facts: Mapping[str, Any], stage: Callable[[Path], None]) -> None:
    """Stage, seal and rename a checkpoint; a failure on one rank ends all ranks.

    Args:
        args: have output_dir and save_total_limit.
        step: the last step of the checkpoint.
        steps: the steps of the whole training.
        facts: further keys of the manifest.
        stage: writes the shared files into a folder, on every rank.
    """
    Progress("save", steps).report(step, now=True)
    output_dir, name = Path(args.output_dir), f"checkpoint-{step}"
    staging = output_dir / checkpoint.STAGING
    owns = ranks.owns(output_dir)
    try:
        with checkpoint.written_together(name, output_dir):
            stage(staging / name)
        # The random states of all ranks, so that any node's copy restarts any rank, even without other nodes.
        states = ranks.gather(torch.get_rng_state().numpy().tobytes().hex())
        with checkpoint.written_together(name, output_dir):
            if owns:
                for rank, state in enumerate(states):
                    tensor = torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
                    torch.save(tensor, staging / name / rng_file(rank))
                all_facts = {**facts, kernels.FACT: kernels.selected()}
                checkpoint.seal(staging / name, step=step, world_size=ranks.world_size(), **all_facts)
                checkpoint.publish(staging / name, output_dir / name)
                checkpoint.rotate(output_dir, args.save_total_limit)
    finally:
        if owns:
            shutil.rmtree(staging, ignore_errors=True)
        ranks.gather(None)  # before any rank stages the next checkpoint


def load_random_state(folder: Path) -> None:
    """Restore this rank's random state, which determines dropout, from a checkpoint.

    Raises:
        RecipeError: if the file contains anything except numbers.
    """
    file = folder / rng_file(ranks.rank())
    if file.is_file():  # absent with another number of ranks, which start_from() reports
        torch.set_rng_state(load_numbers(file))


def rng_file(rank: int) -> str:
    """Return the name of a rank's random state, the same as in Trainer."""
    return "rng_state.pth" if ranks.world_size() == 1 else f"rng_state_{rank}.pth"


def prepare_output(output_dir: Path) -> None:
    """Create the folder for all output, and remove incomplete files of a killed process."""
    patterns = (".*-staging", f"{checkpoint.DISCARDED}*") if ranks.owns(output_dir) else ()
    for path in [path for pattern in patterns for path in output_dir.glob(pattern)]:
        shutil.rmtree(path)
        ranks.note(f"removed incomplete files of an earlier process: {path.name}.")
    ranks.gather(None)
