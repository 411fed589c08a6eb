"""The settings for a site with Slurm: the location of the stack, and the options of sbatch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.errors import PlanError
from orchestrator.targets.batch.allocation import HELD, NEW, Allocation
from orchestrator.targets.batch.image import Image

# A host as `ssh` accepts it; ports and keys belong in ~/.ssh/config.
HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*", re.ASCII)
OPTION = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
# Options of sbatch that orch itself sets, and a hint about each.
RESERVED_OPTIONS = {
    "nodes": "Use --nodes.",
    "ntasks": "Use --nodes and --ppn.",
    "ntasks-per-node": "Use --ppn.",
    "job-name": "The job has the name of the run.",
    "output": "The output of the job is in the run's folder.",
    "error": "The output of the job is in the run's folder.",
    "chdir": "The job starts in the run's folder.",
    "overcommit": "Use --ppn with at most as many ranks as there are cores.",
    "container": "Use --image IMAGE.",
    "array": "Use --array KEY=VALUE,VALUE, which starts one run for each value.",
    "wrap": "Name the script in place of the recipe.",
    "parsable": "orch parses the output of sbatch.",
    "wait": "Use --wait.",
    "test-only": "Use --dry-run.",
    "no-kill": "Use --spare-nodes.",
    "open-mode": "The output of a requeued job is appended.",
    "export": "The job gets the environment of orch.",
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
                raise PlanError(f"--slurm {name}={path}: expected an absolute path, the same on all nodes.")
        if self.local and (not self.root or self.python or self.image):
            raise PlanError(
                f"--slurm local={self.local} needs root=, and excludes python= and --image.",
                hint="The folder is filled with the stack that `orch provision` has packed in root=.",
            )
        if self.login is not None and not HOST.fullmatch(self.login):
            raise PlanError(
                f"--slurm login={self.login}: not a host name, as in `ssh HOST`.",
                hint="Ports and keys belong in ~/.ssh/config.",
            )
        if self.allocation not in (HELD, NEW):
            raise PlanError(
                f"--slurm allocation={self.allocation}: unknown value.",
                hint=f"Use --slurm allocation={HELD} or allocation={NEW}.",
            )
        self.check_setup()
        for name, value in self.sbatch.items():
            if not OPTION.fullmatch(name):
                raise PlanError(
                    f"--slurm {name}: not an option of sbatch.",
                    hint="Use a long option without its dashes: --slurm partition=cpu.",
                )
            if name in RESERVED_OPTIONS:
                raise PlanError(f"--slurm {name}: orch sets this option itself.", hint=RESERVED_OPTIONS[name])
            if not value.isprintable():
                raise PlanError(
                    f"--slurm {name}: its value contains characters that cannot be printed.",
                    hint="Type the value again: copied text may contain such characters.",
                )

    def check_setup(self) -> None:
        """Raise PlanError for a command that is not one line."""
        for command in self.setup:
            if not command.strip() or not command.isprintable():
                raise PlanError(
                    f"--slurm setup={command!r}: expected one line of shell code.",
                    hint="Use --slurm setup='module load gcc' once for each line.",
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
            raise PlanError(f"--slurm {name}={text}: expected a number of 1 or more.")
        return int(text)
