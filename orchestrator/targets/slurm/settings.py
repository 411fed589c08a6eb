"""The settings for a site with Slurm: the location of the stack, and the options of sbatch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.errors import PlanError
from orchestrator.targets.slurm.allocation import HELD, NEW, Allocation
from orchestrator.targets.slurm.image import Image

# A host as `ssh` accepts it; ports and keys belong in ~/.ssh/config.
HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*", re.ASCII)
OPTION = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
# Options of sbatch that orch itself sets, and what the user can use in their place.
RESERVED_OPTIONS = {
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
# Options of sbatch that need no value.
FLAGS = ("exclusive", "requeue", "no-requeue", "contiguous", "spread-job", "hold", "oversubscribe")
# Options that limit the share of a node; without any of them the job gets whole nodes.
SIZES = ("exclusive", "cpus-per-task", "mem", "mem-per-cpu", "oversubscribe", "gres", "cores-per-socket")
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """The settings for a site with Slurm.

    Attributes:
        root: a shared folder that `orch provision` has filled; None for the installation of orch itself,
            which the nodes then see at the same path.
        python: the interpreter of the ranks; None for that of `root` or of orch.
        local: a folder on each node's disk into which the stack is unpacked; None for the shared stack.
        login: the host with Slurm's programs, reached over SSH; None for this machine.
        runs: a shared folder on the cluster for runs that are started over the login node.
        image: the image that holds the ranks; None to run them on the nodes directly.
        pmi: the value of `srun --mpi`.
        setup: shell commands that the job runs first.
        max_requeues: how often a job that has written a checkpoint is requeued; None for no limit.
        allocation: HELD to run as a step of the allocation in which orch runs, if it runs in one, or NEW
            to submit a job.
        held: the allocation in which the run is a step; None for a job.
        sbatch: long options of sbatch; the value of a flag is ''.
        sources: the source of each option of sbatch, to be shown to the user.
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
    sources: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Check that the settings can be used.

        Raises:
            PlanError: for the first invalid value.
        """
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
                hint="Ports and keys belong in ~/.ssh/config.",
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
            if name in RESERVED_OPTIONS:
                raise PlanError(
                    f"--slurm {name}: orch says that itself.", hint=f"In its place: {RESERVED_OPTIONS[name]}."
                )
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
        """Return the value of an option of sbatch as a number, or None if it is not set.

        Raises:
            PlanError: if the value is not a number of at least 1.
        """
        text = self.sbatch.get(name)
        if text is None:
            return None
        if not text.isdigit() or int(text) < 1:
            raise PlanError(f"--slurm {name}={text}: it is a number, 1 or more.")
        return int(text)
