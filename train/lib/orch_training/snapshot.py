"""The whole state of a training loop as a checkpoint, from which it goes on exactly.

The owner of each file system writes what all ranks have in common; every rank writes its random
state, which decides on dropout.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from orch_training import checkpoint, copies, dropout, ranks, resume
from orch_training.events import Progress
from orch_training.safe_loading import read


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """`parts`: name -> what has state_dict() and load_state_dict(). `limit` newest are kept.

    `owner`: whether this rank writes what belongs on its file system once. `facts` go into the
    manifest.
    """

    output_dir: Path
    owner: bool
    parts: Mapping[str, Any]
    limit: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def load(self, folder: Path) -> None:
        """Fill the parts. Files have been verified against their checksums (resume.choose)."""
        for name, part in self.parts.items():
            part.load_state_dict(read(folder / f"{name}.pt"))
        rng = folder / rng_file()
        if rng.is_file():  # not with another number of ranks; resume.tell has said so
            torch.set_rng_state(read(rng))

    def save(self, step: int, steps: int) -> None:
        """Staged, sealed, renamed. A failure on one rank ends all ranks."""
        Progress("save", steps).tell(step, now=True)
        name, staging = f"checkpoint-{step}", self.output_dir / checkpoint.STAGING
        failing = checkpoint.telling_of_failure
        try:
            with ranks.together(), failing(name, self.output_dir):
                self.stage(staging / name)
            with ranks.together(), failing(name, self.output_dir):
                torch.save(torch.get_rng_state(), staging / name / rng_file())
                copies.random_states(staging / name, rng_file(), owner=self.owner)
            with ranks.together(), failing(name, self.output_dir):
                if self.owner:
                    size = ranks.world_size()
                    facts = {**self.facts, dropout.FACT: dropout.selected()}
                    checkpoint.seal(staging / name, step=step, world_size=size, **facts)
                    checkpoint.publish(staging / name, self.output_dir / name)
                    checkpoint.rotate(self.output_dir, self.limit)
        finally:
            if self.owner:
                shutil.rmtree(staging, ignore_errors=True)
            ranks.gather(None)

    def stage(self, folder: Path) -> None:
        if self.owner:
            folder.mkdir(parents=True)
            for name, part in self.parts.items():
                torch.save(part.state_dict(), folder / f"{name}.pt")


def start_from(wanted: str | None, output_dir: Path, *, owner: bool) -> Path | None:
    """The checkpoint to go on from, the same on all ranks; newer ones are removed."""
    found = resume.choose(wanted, output_dir)
    resume.tell(found)
    if owner:
        resume.remove_newer(output_dir, found)
    ranks.gather(None)
    return found


def rng_file() -> str:
    """Named as Trainer does."""
    return "rng_state.pth" if ranks.world_size() == 1 else f"rng_state_{ranks.rank()}.pth"


def prepare_output(output_dir: Path) -> bool:
    """Remove what a killed process left half-written; -> whether this rank writes here."""
    owner = ranks.owner_of(output_dir) == ranks.rank()
    removed = checkpoint.remove_rubbish(output_dir) if owner else []
    if removed:
        ranks.note(f"removed what an earlier process left half-written: {', '.join(removed)}.")
    ranks.gather(None)
    return owner
