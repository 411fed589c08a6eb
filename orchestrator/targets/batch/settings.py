"""The settings for a site with a batch system, and the location of a run that is one of its jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from orch_node.protocol import container, values
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, PlanError
from orchestrator.load.files import StrictModel, Texts
from orchestrator.model.decision import Decision
from orchestrator.planning.containers import ENGINE_OPTION, bind, outermost_folders
from orchestrator.targets.batch.system import HELD, NEW, RESERVED_OPTIONS, Allocation, BatchSystem

RESERVED_APPTAINER_OPTIONS = (
    *("--cleanenv", "-e", "--contain", "-c", "--containall", "-C", "--home", "-H", "--no-home", "--pwd", "--cwd"),
    *("--pid", "-p", "--ipc", "-i", "--net", "-n", "--fakeroot", "-f", "--env-file"),
)


class Image(StrictModel):
    """An image that holds the ranks: the [container] table of a settings file.

    Attributes:
        image: a file or an unpacked folder that all nodes see.
        python: the interpreter in the image, as a path or a program's name.
        mounts: additional mounts as SOURCE:TARGET[:ro].
        env_file: a file with environment variables on the nodes, or ''.
        arguments: additional options of `apptainer exec`, one word each.
    """

    image: str = ""
    python: str = "python3"
    mounts: Texts = ()
    env_file: str = ""
    arguments: Texts = ()

    def check(self) -> None:
        """Raise PlanError if the image cannot be used on all nodes."""
        if "://" in self.image or "#" in self.image:
            raise PlanError.about("pulled-image", image=self.image)
        for path in filter(None, (self.image, self.env_file)):
            if not is_shared_path(path) or not path.isprintable():
                raise PlanError.about("image-path", path=path)
        for argument in self.arguments:
            name = argument.partition("=")[0]
            is_option = ENGINE_OPTION.fullmatch(name) and argument.isprintable()
            if not is_option or name in RESERVED_APPTAINER_OPTIONS:
                problem = "orch sets this option itself" if is_option else "not an option"
                raise PlanError.about("apptainer-option", option=argument, problem=problem)

    def file(self, folders: Iterable[str], run_dir: str, *, preload: tuple[str, ...]) -> str:
        """Return the text of container.json.

        Args:
            folders: folders of the nodes that have the same path in the image.
            run_dir: the folder of the run, in which the ranks start.
            preload: the names of libraries to preload if the image has them.
        """
        options = (
            # Packages in the user's home would take precedence over the image's, so ranks use /tmp as home.
            *("--cleanenv", "--no-home", "--home", "/tmp", "--pwd", run_dir),
            *(option for folder in outermost_folders(folders) for option in ("--mount", bind(folder))),
            *(option for mount in self.mounts for option in ("--bind", mount)),
            *self.arguments,
        )
        return container.render(
            container.ContainerSpec(
                image=self.image,
                start="rank",
                python=self.python,
                preload=preload,
                processes={},
                options=options,
                env_file=self.env_file,
                engine=container.APPTAINER,
            )
        )

    def describe(self) -> Decision:
        """Return the decision to print."""
        reason = f"by Apptainer or Singularity, one for each rank, on its {self.python}"
        return Decision(topic="image", value=self.image, reason=reason)


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
            to submit a job; None if the user has set neither, which means HELD.
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
    allocation: str | None = None
    held: Allocation | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Check that the settings can be used.

        Raises:
            PlanError: for the first invalid value.
        """
        flag = self.system.flag
        for option, path in (("--python ", self.python), (f"{flag} root=", self.root), (f"{flag} runs=", self.runs)):
            if path is not None and not is_shared_path(path):
                raise PlanError(f"{option}{path}: expected an absolute path, the same on all nodes.")
        if self.login is not None and not HOST.fullmatch(self.login):
            raise PlanError.about("login-host", flag=flag, login=self.login)
        allocations = (HELD, NEW) if self.system.allocation_request else ()
        if self.allocation not in (None, *allocations):
            hint = f"Use {flag} allocation={HELD} or allocation={NEW}." if allocations else "Leave it out."
            raise PlanError(f"{flag} allocation={self.allocation}: not possible on {self.system.title}.", hint=hint)
        if self.image:
            self.image.check()
        self.check_options()

    def check_options(self) -> None:
        """Raise PlanError for an option of the job or of the launcher that cannot be used."""
        flag = self.system.flag
        for name, value in self.launcher.items():
            if value not in (choices := self.system.launcher_settings[name]):
                raise PlanError(f"{flag} {name}={value}: expected one of {', '.join(choices)}.")
        reserved = {**RESERVED_OPTIONS, **self.system.reserved}
        for name, value in self.options.items():
            if not OPTION.fullmatch(name):
                raise PlanError.about("unknown-job-option", name=name, system=self.system)
            if name in reserved:
                source = self.sources.get(name, "requested")
                raise PlanError(f"{flag} {name} ({source}): orch sets this option itself.", hint=reserved[name])
            if not value.isprintable():
                raise PlanError.about("unprintable-value", flag=flag, name=name)


def is_shared_path(path: str) -> bool:
    """Return whether a path can be the same on all nodes."""
    return path.startswith("/") and ".." not in path.split("/")


JOB_NAME_PREFIX = "orch-"  # before the run id
# A job id of any batch system, such as Slurm's 12, 12_TASK and 12.STEP or PBS's 12[TASK].server.
JOB = re.compile(r"[0-9]{1,18}[0-9A-Za-z._\[\]-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """The job of a run, and the cluster that has it.

    Attributes:
        name: the name of the job, which is unique among the runs.
        job: the id of the job; '' until it is submitted.
        login: the host with the batch system's programs; '' for this machine.
        cluster: the job's cluster, at a site with several; '' for the host's default.
    """

    name: str
    job: str = ""
    login: str = ""
    cluster: str = ""


def location_of(record: RunRecord) -> JobLocation:
    """Return the location in a run record.

    Raises:
        ExecuteError: if the location is damaged.
    """
    try:
        location = values.read(JobLocation, record.location, "location")
        fields = (("job", location.job, JOB), ("host", location.login, HOST), ("cluster", location.cluster, HOST))
        for kind, text, pattern in fields:
            if text and not pattern.fullmatch(text):
                raise values.ProtocolError(f"{text!r:.40} is not a valid {kind}.")
    except values.ProtocolError as error:
        raise ExecuteError.about("damaged-location", run=record, error=error) from None
    return location


def store_of(run_dir: str) -> str:
    """Return the folder of what controllers have sent for the runs next to this one, by the hash of the content."""
    return f"{PurePosixPath(run_dir).parent}/.orch/store"


def with_job(record: RunRecord, job: str, cluster: str = "") -> RunRecord:
    """Return the record with the id of the submitted job."""
    return replace(record, location=values.record(replace(location_of(record), job=job, cluster=cluster)))
