"""Containers for ranks: one per node, whichever launcher starts the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from orch_node.protocol import container

from orchestrator.errors import PlanError
from orchestrator.model.decision import Decision
from orchestrator.planning.request import RunPaths
from orchestrator.stacks.stack import IMAGE_NAME

STARTS = ("rank", "node")
UNLIMITED, INHERIT = "unlimited", "inherit"
MOUNT = re.compile(r"/.*:/", re.DOTALL)
ENGINE_OPTION = re.compile(r"-\w|--[a-z][a-z-]*")
# Options that orch sets itself, because it reaches, finds and ends ranks through them.
RESERVED_OPTIONS = (
    *("--detach", "-d", "--interactive", "-i", "--tty", "-t", "--label", "-l", "--user", "-u", "--workdir", "-w"),
    *("--network", "--net", "--pid", "--cpuset-cpus", "--shm-size", "--rm", "--name", "--pull", "--entrypoint"),
    "--env-file",
)

# Mounting one of these would hide files of the image, so a script in one of them is mounted without its folder.
IMAGE_FOLDERS = ("/", "/bin", "/dev", "/etc", "/lib", "/opt", "/proc", "/run", "/sys", "/usr", "/var")


@dataclass(frozen=True, slots=True, kw_only=True)
class Docker:
    """The settings with which containers are started.

    Attributes:
        start: `rank` starts each rank in the container, `node` the image's own entrypoint once per node.
        python: the image's interpreter, by path or name.
        shm: the size of /dev/shm.
        memlock: the limit of locked memory: unlimited, inherit (the engine's own limit) or bytes.
        mounts: SOURCE:TARGET[:ro] as in `docker run --volume`.
        env_file: a file on the nodes, of mode 0600 if it contains secrets. Its values are passed through a pipe, so
            `docker inspect` does not show them.
        arguments: more options of `docker run`, each in one word.
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
        """Raise PlanError for the first value that the engine would misread, or that orch sets itself."""
        names = {word: word.partition("=")[0] for word in self.arguments}
        for is_valid, problem, value in (
            (IMAGE_NAME.fullmatch(self.image), "docker-image", self.image),
            (self.start in STARTS, "docker-start", self.start),
            (self.env_file[:1] in ("", "/"), "docker-env-file", self.env_file),
            *((MOUNT.match(mount), "docker-mount", mount) for mount in self.mounts),
            *((ENGINE_OPTION.fullmatch(names[word]), "docker-argument", word) for word in names),
            *((name not in RESERVED_OPTIONS, "docker-reserved", name) for name in names.values()),
        ):
            if not is_valid:
                raise PlanError.about(problem, value=value)

    def options(self, folders: Iterable[str], workdir: str) -> tuple[str, ...]:
        """Return the options of `docker run`; `folders` of the node have the same path in the container."""
        limit = "-1:-1" if self.memlock == UNLIMITED else f"{self.memlock}:{self.memlock}"
        return (
            # With the node's network and process ids, ranks are reached and ended as without containers.
            *("--network", "host", "--pid", "host"),
            *("--shm-size", self.shm),
            *(() if self.memlock == INHERIT else ("--ulimit", f"memlock={limit}")),
            *("--workdir", workdir),
            # The node's user may not exist in the image, and then has no home.
            *("--env", "HOME=/tmp", "--env", "USER=orch"),
            *(word for folder in outermost_folders(folders) for word in ("--mount", bind(folder))),
            *(word for mount in self.mounts for word in mount_option(mount)),
            *self.arguments,
        )

    def file(
        self, folders: Iterable[str], run_dir: str, *, preload: tuple[str, ...], processes: Mapping[str, int]
    ) -> str:
        """Return the content of container.json.

        Args:
            folders: the folders that the container shares with its node.
            run_dir: the run's folder.
            preload: the names of libraries to preload from the image.
            processes: how many ranks the image itself starts on each node.
        """
        return container.render(
            container.ContainerSpec(
                image=self.image,
                start=self.start,
                python=self.python,
                preload=preload,
                processes=dict(processes),
                options=self.options(folders, run_dir),
                env_file=self.env_file,
            )
        )

    @property
    def starts_ranks(self) -> bool:
        """Return whether the image's own entrypoint starts the ranks."""
        return self.start == "node"

    def decision(self) -> Decision:
        """Return the decision about the containers."""
        by_image = "its entrypoint starts the ranks, with RANK = node"
        ranks = by_image if self.starts_ranks else f"ranks on its {self.python}"
        devices = [word for word in self.arguments if word.startswith(("--gpus", "--device"))]
        reason = "; ".join(["by docker, one container on each node, as the node's user", ranks, *devices])
        return Decision(topic="image", value=self.image, reason=reason)


def mount_option(mount: str) -> tuple[str, str]:
    """Return the option of `docker run` for SOURCE:TARGET[:ro]: --mount, because --volume creates a missing source.

    Only --volume accepts other options after the target, such as :z of SELinux.
    """
    source, target, *mode = mount.split(":")
    if mode not in ([], ["ro"]):
        return "--volume", mount
    return "--mount", ",".join([bind(source, target), *("readonly" for _ in mode)])


def bind(source: str, target: str = "") -> str:
    """Return a value of --mount, which docker parses as CSV, so that any path is possible."""
    fields = (f"{name}={path}".replace('"', '""') for name, path in (("source", source), ("target", target or source)))
    return "type=bind," + ",".join(f'"{field}"' for field in fields)


def shared_folders(run_paths: RunPaths, script: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the folders that a container shares with its node, at the same paths.

    They hold the runs, orch's programs, models and data; on this machine also the script, its recipe
    and its data. orch's whole folder is not shared: as /opt/orch it would hide the image's stack.

    Args:
        run_paths: the folders of the run.
        script: the path of the script; '' for a module, which is in the image.
        paths: the paths of all files of the run.
    """
    base, folder = str(PurePosixPath(run_paths.run_dir).parent), str(PurePosixPath(script).parent)
    if run_paths.root:
        return (base, run_paths.train, *(f"{run_paths.root}/{name}" for name in ("data", "models", "hub")))
    is_shared = script and folder not in IMAGE_FOLDERS
    return (base, run_paths.train, *((folder,) if is_shared else ()), *paths)


def outermost_folders(folders: Iterable[str]) -> list[str]:
    """Return the folders that are not inside another one."""
    roots: list[str] = []
    for folder in sorted(set(folders), key=lambda path: PurePosixPath(path).parts):
        if not roots or not PurePosixPath(folder).is_relative_to(roots[-1]):
            roots.append(folder)
    return sorted(roots)
