"""The options that `orch train` has only with --on slurm, and those that it refuses there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from orchestrator.planning.refusal import Refusal


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


NODES = "is for nodes behind SSH"
CONTAINERS = Refusal(
    "is for containers of Docker, which users of Slurm may not start",
    "Use --container IMAGE to run the ranks in an image of Apptainer, Singularity or Pyxis.",
)

REFUSES: Mapping[str, Refusal] = {
    "inventory": Refusal(NODES, "Use --slurm partition=NAME to choose nodes."),
    "exclude": Refusal(NODES, "Use --slurm exclude=NODES to leave nodes out."),
    "queue": Refusal(NODES, "Jobs of Slurm wait for free nodes by themselves."),
    "ccl_workers": Refusal(NODES, "Leave it out: each rank computes on all of its cores."),
    "fabric": Refusal(
        "is for nodes behind SSH, on which it was verified",
        "Leave it out: ranks use TCP over the network of the nodes.",
    ),
    "accelerate_config": Refusal("is not read on Slurm", "Use the options --nodes, --ppn and --precision."),
    "project": Refusal(
        NODES, "Put the project into a folder that all nodes share; the script finds its modules there."
    ),
    "project_limit": Refusal(NODES, "Leave it out."),
    "docker_image": CONTAINERS,
    "docker": CONTAINERS,
}
