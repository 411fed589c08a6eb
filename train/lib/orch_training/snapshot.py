"""Checkpoints of the whole state of a training loop, from which it resumes exactly.

The owner of each file system writes what all ranks share, and the random state of each rank, which determines dropout.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from orch_training import RecipeError, checkpoint, kernels, ranks
from orch_training.events import Progress


def load_numbers(path: Path) -> Any:
    """Return the content of a file of torch.save on the CPU, without running code from it: anybody may have written it.

    A checksum next to a file shows that it is complete, but not who wrote it.

    Raises:
        RecipeError: if it contains anything except numbers.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise RecipeError(
            f"{path} contains more than numbers, which could be code that runs when it is read: an older orch or "
            "somebody else wrote it. Resume from another checkpoint, or start from the beginning with "
            "--resume_from_checkpoint none."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """Writes and reads checkpoints.

    Attributes:
        parts: objects with state_dict() and load_state_dict(), by name.
        limit: how many checkpoints are kept.
        facts: further keys of the manifest.
    """

    output_dir: Path
    parts: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def load(self, folder: Path) -> None:
        """Load the parts from a checkpoint whose checksums resume.start_from() has verified."""
        for name, part in self.parts.items():
            part.load_state_dict(load_numbers(folder / f"{name}.pt"))
        load_random_state(folder)

    def save(self, step: int, steps: int, stage: Callable[[Path], None] | None = None) -> None:
        """Stage, seal and rename a checkpoint; a failure on one rank ends all ranks.

        Args:
            step: the last step of the checkpoint.
            steps: the steps of the whole training.
            stage: writes the shared files into a folder, on every rank; by default, the owner writes the parts.
        """
        Progress("save", steps).report(step, now=True)
        name, staging = f"checkpoint-{step}", self.output_dir / checkpoint.STAGING
        try:
            with checkpoint.written_together(name, self.output_dir):
                (stage or self.stage)(staging / name)
            # The random states of all ranks, so that any node's copy restarts any rank, even without other nodes.
            states = ranks.gather(torch.get_rng_state().numpy().tobytes().hex())
            with checkpoint.written_together(name, self.output_dir):
                if ranks.owns(self.output_dir):
                    for rank, state in enumerate(states):
                        tensor = torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
                        torch.save(tensor, staging / name / rng_file(rank))
                    facts = {**self.facts, kernels.FACT: kernels.selected()}
                    checkpoint.seal(staging / name, step=step, world_size=ranks.world_size(), **facts)
                    checkpoint.publish(staging / name, self.output_dir / name)
                    checkpoint.rotate(self.output_dir, self.limit)
        finally:
            if ranks.owns(self.output_dir):
                shutil.rmtree(staging, ignore_errors=True)
            ranks.gather(None)  # before any rank stages the next checkpoint

    def stage(self, folder: Path) -> None:
        if ranks.owns(self.output_dir):
            folder.mkdir(parents=True)
            for name, part in self.parts.items():
                torch.save(part.state_dict(), folder / f"{name}.pt")


def load_random_state(folder: Path) -> None:
    """Restore this rank's random state, which determines dropout, from a checkpoint.

    Raises:
        RecipeError: if the file contains anything except numbers.
    """
    file = folder / rng_file(ranks.rank())
    if file.is_file():  # absent with another number of ranks, which resume.start_from() reports
        torch.set_rng_state(load_numbers(file))


def rng_file(rank: int) -> str:
    """Return the name of a rank's random state, the same as in Trainer."""
    return "rng_state.pth" if ranks.world_size() == 1 else f"rng_state_{rank}.pth"


def prepare_output(output_dir: Path) -> None:
    """Create the folder for all output, and remove incomplete files of a killed process."""
    removed = checkpoint.remove_incomplete(output_dir) if ranks.owns(output_dir) else []
    if removed:
        ranks.note(f"removed incomplete files of an earlier process: {', '.join(removed)}.")
    ranks.gather(None)
