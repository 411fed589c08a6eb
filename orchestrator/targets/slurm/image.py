"""Ranks in an image: by Apptainer or Singularity, or by Pyxis where it is a .sqsh. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from orch_node.protocol import container
from orch_node.protocol.container import APPTAINER, PYXIS, ContainerSpec

from orchestrator.errors import PlanError
from orchestrator.model.decision import Choice, Decision
from orchestrator.planning.containers import bind, outermost_folders

SQUASHED = ".sqsh"  # as `enroot import` names them
NAMES = ("python", "mounts", "env-file", "arguments")
LISTS = ("mounts", "arguments")
# What orch itself tells Apptainer: how ranks are reached, found and ended.
OURS = (
    "--cleanenv",
    "-e",
    "--contain",
    "-c",
    "--containall",
    "-C",
    "--home",
    "-H",
    "--no-home",
    "--pwd",
    "--cwd",
    "--pid",
    "-p",
    "--ipc",
    "-i",
    "--net",
    "-n",
    "--fakeroot",
    "-f",
    "--env-file",
)
OURS_OF_PYXIS = (
    "--container-image",
    "--container-mounts",
    "--container-workdir",
    "--container-name",
    "--no-container-mount-home",
    "--container-mount-home",
)
WORKS = "by Apptainer or Singularity", "by Pyxis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """`path`: a .sif or an unpacked folder, or .sqsh for Pyxis, that all nodes see. `python`: the
    image's, by path or name. `mounts`: SOURCE:TARGET[:ro]. `env_file`: a file of variables on the
    nodes. `arguments`: more options of `apptainer exec` or, of Pyxis, `srun`, one word each."""

    path: str
    python: str = "python3"
    mounts: tuple[str, ...] = ()
    env_file: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        return PYXIS if self.path.endswith(SQUASHED) else APPTAINER

    def check(self) -> None:
        """Raises PlanError for the first value that cannot be."""
        if "://" in self.path or "#" in self.path:
            raise PlanError(
                f"--container {self.path}: runs pull no image; it is a file that all nodes see.",
                hint="Once, on the login node: apptainer pull IMAGE.sif docker://NAME, or for "
                "Pyxis enroot import -o IMAGE.sqsh docker://NAME.",
            )
        for path in (self.path, *([self.env_file] if self.env_file else ())):
            if not path.startswith("/") or ".." in path.split("/") or not path.isprintable():
                raise PlanError(
                    f"--container: {path!r} is no absolute path on all nodes.",
                    hint="Name the file as the nodes see it: /shared/images/IMAGE.sif.",
                )
        for mount in self.mounts:
            if not re.fullmatch(r"/[^:,]*:/[^:,]*(:r[ow])?", mount) or not mount.isprintable():
                raise PlanError(f"--slurm container-mounts={mount}: it is not SOURCE:TARGET.", hint="/data:/data:ro")
        self.check_arguments()

    def check_arguments(self) -> None:
        ours = OURS_OF_PYXIS if self.engine == PYXIS else OURS
        for word in self.arguments:
            name = word.partition("=")[0]
            if not re.fullmatch(r"-\w|--[a-z][a-z-]*", name) or not word.isprintable():
                raise PlanError(
                    f"--slurm container-arguments={word}: it is no option.",
                    hint="Each is one word: --slurm container-arguments=--nv.",
                )
            if name in ours:
                raise PlanError(
                    f"--slurm container-arguments={name}: orch says that itself.",
                    hint="Leave it out; `--dry-run` shows all options.",
                )

    def options(self, folders: Iterable[str], run_dir: str) -> tuple[str, ...]:
        """`folders` of the nodes have the same path in the image. Raises PlanError."""
        seen = outermost_folders(folders)
        if self.engine == PYXIS:
            mounts = ",".join((*map(pair, seen), *self.mounts))
            own = ("--no-container-mount-home", f"--container-workdir={run_dir}")
            return (f"--container-mounts={mounts}", *own, *self.arguments)
        return (
            # The user's home has packages that would come before the image's; ranks write to /tmp.
            *("--cleanenv", "--no-home", "--home", "/tmp", "--pwd", run_dir),
            *(word for folder in seen for word in ("--mount", bind(folder))),
            *(word for mount in self.mounts for word in ("--bind", mount)),
            *self.arguments,
        )

    def file(self, folders: Iterable[str], run_dir: str, *, preload: tuple[str, ...]) -> str:
        """container.json. `preload`: names of libraries, where the image has them."""
        return container.render(
            ContainerSpec(
                image=self.path,
                start="rank",
                python=self.python,
                preload=preload,
                processes={},
                options=self.options(folders, run_dir),
                env_file=self.env_file,
                engine=self.engine,
            )
        )


def pair(folder: str) -> str:
    """Of --container-mounts, which has no quotes. Raises PlanError."""
    if set(folder) & set(",:"):
        raise PlanError(
            f"Pyxis cannot mount {folder}: a comma or a colon is in its name.",
            hint="Rename the folder, or take an image of Apptainer.",
        )
    return f"{folder}:{folder}"


def choose_image(image: Image | None, launcher: str) -> Choice[Image | None]:
    """Raises PlanError."""
    if image is None:
        return Choice(None)
    image.check()
    by_pyxis = image.engine == PYXIS
    if by_pyxis and launcher != "srun":
        raise PlanError(
            f"--launcher {launcher}: Pyxis holds the ranks that srun starts.",
            hint="Leave it out; or take an image of Apptainer: --container IMAGE.sif.",
        )
    why = f"{WORKS[by_pyxis]}, one for each rank, on its {image.python}"
    return Choice(image, (Decision(topic="container", value=image.path, reason=why),))
