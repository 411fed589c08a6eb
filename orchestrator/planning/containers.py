"""Ranks in containers: one of an image on each node, whatever launcher starts the ranks. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.errors import PlanError
from orchestrator.model.decision import Decision
from orchestrator.stacks.image import NAME

FILE = "container.json"  # in a run's folder; train/containers.py reads it
STARTS = ("rank", "node")
UNLIMITED, INHERIT = "unlimited", "inherit"
SIZE = re.compile(r"[1-9]\d*[bkmg]?", re.IGNORECASE)
# What orch itself says of a container: how its ranks are reached, found and ended.
OURS = (
    "--detach",
    "-d",
    "--entrypoint",
    "--env-file",
    "--label",
    "-l",
    "--network",
    "--net",
    "--pid",
    "--user",
    "-u",
    "--cpuset-cpus",
    "--shm-size",
    "--rm",
    "--name",
    "--workdir",
    "-w",
    "--pull",
    "--tty",
    "-t",
    "--interactive",
    "-i",
)

# Mounted over, an image would not be itself any more; a script there comes without its neighbours.
OF_THE_IMAGE = ("/", "/bin", "/dev", "/etc", "/lib", "/opt", "/proc", "/run", "/sys", "/usr", "/var")


@dataclass(frozen=True, slots=True, kw_only=True)
class Docker:
    """How containers are started. `start`: orch's ranks in them, or once per node the image's own
    entrypoint.

    `python`: the image's, by path or name. `shm`: the size of /dev/shm. `memlock`: memory that may
    be locked: unlimited, inherit (the engine's own limit) or bytes. `mounts`: SOURCE:TARGET[:ro] as
    `docker run --volume` takes them. `env_file`: a file on the nodes, of mode 0600 if it holds
    secrets; its values reach the ranks by a pipe, and no `docker inspect`. `arguments`: more
    options of `docker run`, each in one word.
    """

    image: str = ""
    start: str = "rank"
    python: str = "python3"
    shm: str = "1g"
    memlock: str = UNLIMITED
    mounts: tuple[str, ...] = ()
    env_file: str = ""
    arguments: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises PlanError for the first value that the engine would refuse or misread."""
        if not NAME.fullmatch(self.image):
            raise PlanError(
                f"--docker-image {self.image!r} is no name of an image.",
                hint="Examples: orch:current, registry.example/team/torch:3.",
            )
        if self.start not in STARTS:
            raise PlanError(f"start = {self.start!r}.", hint=f"It is {' or '.join(STARTS)}.")
        if not SIZE.fullmatch(self.shm):
            raise PlanError(f"shm = {self.shm!r} is no size.", hint="Examples: 512m, 4g.")
        if self.memlock not in (UNLIMITED, INHERIT) and not self.memlock.isdecimal():
            raise PlanError(f"memlock = {self.memlock!r}.", hint=f"{UNLIMITED}, {INHERIT} or a number of bytes.")
        if self.env_file and not self.env_file.startswith("/"):
            raise PlanError(
                f"env_file = {self.env_file!r} is no absolute path.",
                hint="It is a file on the nodes: /etc/orch/train.env",
            )
        for mount in self.mounts:
            if not mount.startswith("/") or ":/" not in mount:
                raise PlanError(f"mounts: {mount!r} is not SOURCE:TARGET.", hint="/data:/data:ro")
        self.check_arguments()

    def check_arguments(self) -> None:
        """A word that is no option would be taken for the image."""
        for word in self.arguments:
            name = word.partition("=")[0]
            if not re.fullmatch(r"-\w|--[a-z][a-z-]*", name):
                raise PlanError(
                    f"arguments: {word!r} is no option of docker run.", hint="Each is one word: --cap-add=SYS_NICE."
                )
            if name in OURS:
                raise PlanError(
                    f"arguments: {name} is orch's own.",
                    hint="There are image, shm, mounts, env_file and python; cores follow from the layout.",
                )

    def options(self, folders: Iterable[str], workdir: str) -> tuple[str, ...]:
        """Options of `docker run`. `folders` of the node have the same path in the container."""
        limit = "-1:-1" if self.memlock == UNLIMITED else f"{self.memlock}:{self.memlock}"
        return (
            # The node's network and process ids: ranks are reached, seen and ended as without.
            *("--network", "host", "--pid", "host"),
            *("--shm-size", self.shm),
            *(() if self.memlock == INHERIT else ("--ulimit", f"memlock={limit}")),
            *("--workdir", workdir),
            # The node's user may be nobody in the image, without a home.
            *("--env", "HOME=/tmp", "--env", "USER=orch"),
            *(word for folder in outermost(folders) for word in ("--mount", bind(folder))),
            *(word for mount in self.mounts for word in ("--volume", mount)),
            *self.arguments,
        )

    def file(
        self, folders: Iterable[str], run_dir: str, *, preload: tuple[str, ...], processes: Mapping[str, int]
    ) -> str:
        """container.json. `preload`: names of libraries, where the image has them. `processes`:
        node -> the ranks that the image itself starts there."""
        value = {
            "schema": 1,
            "image": self.image,
            "start": self.start,
            "python": self.python,
            "preload": list(preload),
            "processes": dict(processes),
            "options": list(self.options(folders, run_dir)),
            **({"env_file": self.env_file} if self.env_file else {}),
        }
        return json.dumps(value, indent=1) + "\n"

    @property
    def starts_ranks(self) -> bool:
        """Whether the image's own entrypoint does, and orch starts that alone."""
        return self.start == "node"

    def tell(self) -> Decision:
        what = f"ranks on its {self.python}"
        if self.starts_ranks:
            what = "its entrypoint, told RANK = node, starts the ranks"
        why = f"one container on each node, as the node's user; {what}"
        return Decision(topic="docker", value=self.image, reason=why)


def bind(folder: str) -> str:
    """A value of --mount, which docker reads as a line of CSV: any path survives that."""
    fields = (f"{name}={folder}".replace('"', '""') for name in ("source", "target"))
    return "type=bind," + ",".join(f'"{field}"' for field in fields)


def seen_folders(base: str, train: str, script: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Return what a container has at the same paths as its node: runs, programs, the folder of
    the script, and data. `script` is empty for a module, which the image has."""
    folder = str(PurePosixPath(script).parent)
    is_seen = script and folder not in OF_THE_IMAGE
    return (base, train, *((folder,) if is_seen else ()), *paths)


def outermost(folders: Iterable[str]) -> list[str]:
    """The folders without those inside another one."""
    found = sorted(set(folders))
    return [
        one for one in found if not any(other != one and PurePosixPath(one).is_relative_to(other) for other in found)
    ]
