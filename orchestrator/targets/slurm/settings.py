"""What a site with Slurm is to orch: where the stack is, and what sbatch is told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.errors import PlanError
from orchestrator.targets.slurm.allocation import HELD, NEW, Allocation
from orchestrator.targets.slurm.image import Image

# As `ssh` takes it; ports and keys are said in ~/.ssh/config.
HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*", re.ASCII)
OPTION = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
# What orch itself tells sbatch -> what to say instead.
OURS = {
    "nodes": "--nodes",
    "ntasks": "--nodes and --ppn",
    "ntasks-per-node": "--ppn",
    "job-name": "nothing: the job has the run's name",
    "output": "nothing: what the job says is in the run's folder",
    "error": "nothing: what the job says is in the run's folder",
    "chdir": "nothing: the job begins in the run's folder",
    "overcommit": "--ppn, as many as there are cores",
    "container": "--container IMAGE",
    "array": "--array KEY=VALUE,VALUE, one run for each value",
    "wrap": "the script's name in place of the recipe",
    "parsable": "nothing",
    "wait": "--wait",
    "test-only": "--dry-run",
    "no-kill": "--spare-nodes",
    "open-mode": "nothing: the job's words are added to",
    "export": "nothing: the job gets the environment",
}
# Whose mere presence says all.
FLAGS = ("exclusive", "requeue", "no-requeue", "contiguous", "spread-job", "hold", "oversubscribe")
# How much of a node the job gets: where none of these is said, it gets whole nodes.
SIZES = ("exclusive", "cpus-per-task", "mem", "mem-per-cpu", "oversubscribe", "gres", "cores-per-socket")
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """`root`: a shared folder that `orch provision` has filled; without one, orch's own
    installation, which the nodes then see at the same place. `python`: the interpreter of the
    ranks, where it is neither's. `local`: a folder of each node's own, from which the ranks run.
    `login`: a host on which Slurm's programs are, reached by SSH;
    `runs`: a shared folder there, below which runs from other machines live.
    `image`: that holds the ranks. `pmi`: what `srun --mpi` is told. `sbatch`: its long options, an
    empty text for a mere flag; `why`: option -> where it comes from. `setup`: shell commands that
    the job runs first. `max_requeues`: how often a job that has written a checkpoint goes back into
    the queue; None for no limit. `allocation`: HELD for a step of the allocation in which orch
    runs, if it runs in one, or NEW for a job of its own; `held`: that allocation.
    """

    root: str | None = None
    python: str | None = None
    local: str | None = None
    login: str | None = None
    runs: str | None = None
    image: Image | None = None
    pmi: str = "auto"
    setup: tuple[str, ...] = ()
    max_requeues: int | None = None
    allocation: str = HELD
    held: Allocation | None = None
    sbatch: Mapping[str, str] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raises PlanError for the first value that cannot be."""
        for name in ("root", "python", "local", "runs"):
            path = getattr(self, name)
            if path is not None and (not path.startswith("/") or ".." in path.split("/")):
                raise PlanError(f"--slurm {name}={path}: it is an absolute path on all nodes.")
        if self.local and (not self.root or self.python or self.image):
            raise PlanError(
                f"--slurm local={self.local}: it is filled from what `orch provision` has packed below root=.",
                hint="Say root= with it, and neither python= nor --container.",
            )
        if self.login is not None and not HOST.fullmatch(self.login):
            raise PlanError(
                f"--slurm login={self.login}: it is a host, as in `ssh HOST`.",
                hint="A port or a key of its own is said in ~/.ssh/config.",
            )
        if self.allocation not in (HELD, NEW):
            raise PlanError(
                f"--slurm allocation={self.allocation}: there is no such choice.",
                hint=f"--slurm allocation={HELD} or allocation={NEW}",
            )
        self.check_setup()
        for name, value in self.sbatch.items():
            if not OPTION.fullmatch(name):
                raise PlanError(
                    f"--slurm {name}: that is no option of sbatch.",
                    hint="A long one without its dashes: --slurm partition=cpu.",
                )
            if name in OURS:
                raise PlanError(f"--slurm {name}: orch says that itself.", hint=f"In its place: {OURS[name]}.")
            if not value.isprintable():
                raise PlanError(
                    f"--slurm {name}: its value holds what cannot be printed.",
                    hint="Type it anew: copied text may hold such characters.",
                )

    def check_setup(self) -> None:
        """Raise PlanError for a command that is not one line."""
        for command in self.setup:
            if not command.strip() or not command.isprintable():
                raise PlanError(
                    f"--slurm setup={command!r}: it is not one line of shell.",
                    hint="--slurm setup='module load gcc', once for each line.",
                )

    def number(self, name: str) -> int | None:
        """Raises PlanError for an option that is no number."""
        text = self.sbatch.get(name)
        if text is None:
            return None
        if not text.isdigit() or int(text) < 1:
            raise PlanError(f"--slurm {name}={text}: it is a number, 1 or more.")
        return int(text)
