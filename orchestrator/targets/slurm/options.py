"""What `orch train --on slurm` has besides the options of all targets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """`slurm`: settings as KEY=VALUE; `slurm_file`: the file with the others; `array`: settings of
    the recipe as KEY=VALUE,VALUE, for one run of each; `container`: an image that holds the
    ranks."""

    on: ClassVar[str] = "slurm"

    slurm: tuple[str, ...] = ()
    slurm_file: Path | None = None
    array: tuple[str, ...] = ()
    container: str | None = None
