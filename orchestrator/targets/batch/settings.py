"""The settings for a site with a batch system: the location of the stack, and the options of jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.errors import PlanError
from orchestrator.targets.batch.image import Image
from orchestrator.targets.batch.system import HELD, NEW, RESERVED_OPTIONS, Allocation, BatchSystem

# A host as `ssh` accepts it; ports and keys belong in ~/.ssh/config.
HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*", re.ASCII)
OPTION = re.compile(r"[a-z][a-z0-9-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """The settings for a site with a batch system.

    Attributes:
        system: the batch system.
        root: a shared folder that `orch provision` has filled; None for the installation of orch itself,
            which the nodes then see at the same path.
        python: the interpreter of the ranks; None for that of `root` or of orch.
        login: the host with the system's programs, reached over SSH; None for this machine.
        runs: a shared folder on the cluster for runs that are started over the login node.
        image: the image that holds the ranks; None to run them on the nodes directly.
        launcher: the settings of the system's own launcher.
        setup: shell commands that the job runs first.
        max_requeues: how often a job that has written a checkpoint is requeued; None for no limit.
        allocation: HELD to run as a step of the allocation in which orch runs, if it runs in one, or NEW
            to submit a job; '' if the user has set neither, which means HELD.
        held: the allocation in which the run is a step; None for a job.
        options: options of the job by their long names; the value of a flag is ''.
        sources: the source of each of these options, to be shown to the user.
    """

    system: BatchSystem
    root: str | None = None
    python: str | None = None
    login: str | None = None
    runs: str | None = None
    image: Image | None = None
    launcher: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    max_requeues: int | None = None
    allocation: str = ""
    held: Allocation | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Check that the settings can be used.

        Raises:
            PlanError: for the first invalid value.
        """
        flag = self.system.flag
        for name in ("root", "python", "runs"):
            path = getattr(self, name)
            if path is not None and (not path.startswith("/") or ".." in path.split("/")):
                option = "--python " if name == "python" else f"{flag} {name}="
                raise PlanError(f"{option}{path}: expected an absolute path, the same on all nodes.")
        if self.login is not None and not HOST.fullmatch(self.login):
            raise PlanError(
                f"{flag} login={self.login}: not a host name, as in `ssh HOST`.",
                hint="Ports and keys belong in ~/.ssh/config.",
            )
        if self.allocation and self.system.held is None:
            raise PlanError(
                f"{flag} allocation={self.allocation}: every run on {self.system.title} is a new job.",
                hint="Leave it out.",
            )
        if self.allocation not in ("", HELD, NEW):
            raise PlanError(
                f"{flag} allocation={self.allocation}: unknown value.",
                hint=f"Use {flag} allocation={HELD} or allocation={NEW}.",
            )
        self.check_setup()
        self.check_options()

    def check_options(self) -> None:
        """Raise PlanError for the first invalid option of the job or of the launcher."""
        flag = self.system.flag
        for name, value in self.launcher.items():
            if value not in self.system.launcher_settings[name]:
                choices = ", ".join(self.system.launcher_settings[name])
                raise PlanError(f"{flag} {name}={value}: expected one of {choices}.")
        for name, value in self.options.items():
            if not OPTION.fullmatch(name):
                raise PlanError(
                    f"{flag} {name}: not an option of {self.system.submitter}.",
                    hint=f"Use the long name of an option without its dashes: {flag} {self.system.example_option}.",
                )
            if name in self.system.foreign:
                raise PlanError(
                    f"{flag} {name}: not an option of {self.system.submitter}.",
                    hint=f"Did you mean '{self.system.foreign[name]}'?",
                )
            reserved = {**RESERVED_OPTIONS, **self.system.reserved}
            if name in reserved:
                raise PlanError(f"{flag} {name}: orch sets this option itself.", hint=reserved[name])
            if not value.isprintable():
                raise PlanError(
                    f"{flag} {name}: its value contains characters that cannot be printed.",
                    hint="Type the value again: copied text may contain such characters.",
                )

    def check_setup(self) -> None:
        """Raise PlanError for a command that is not one line."""
        for command in self.setup:
            if not command.strip() or not command.isprintable():
                raise PlanError(
                    f"{self.system.flag} setup={command!r}: expected one line of shell code.",
                    hint=f"Use {self.system.flag} setup='module load gcc' once for each line.",
                )
