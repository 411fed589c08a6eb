"""The options of `orch train --on slurm` that other targets do not have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """The options of a request that only Slurm has.

    Attributes:
        on: the target that has these options.
        slurm: settings as KEY=VALUE.
        slurm_file: a file with more settings; None for the default.
        array: settings of the recipe as KEY=VALUE,VALUE, for a run with each of the values.
        container: an image that holds the ranks; None if the option is not used.
    """

    on: ClassVar[str] = "slurm"

    slurm: tuple[str, ...] = ()
    slurm_file: Path | None = None
    array: tuple[str, ...] = ()
    container: str | None = None
