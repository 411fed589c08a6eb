"""Run the ranks in an image: with Apptainer or Singularity, or with Pyxis if it is a .sqsh file. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from orch_node.protocol import container
from orch_node.protocol.container import APPTAINER, PYXIS, ContainerSpec

from orchestrator.errors import PlanError
from orchestrator.model.decision import Choice, Decision
from orchestrator.planning.containers import bind, outermost_folders

SQUASHED = ".sqsh"  # The suffix of the images that `enroot import` writes.
NAMES = ("python", "mounts", "env_file", "arguments")
LISTS = ("mounts", "arguments")
# Options of Apptainer that orch itself sets: they affect how ranks are started, reached and ended.
RESERVED_OPTIONS = (
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
RESERVED_PYXIS_OPTIONS = (
    "--container-image",
    "--container-mounts",
    "--container-workdir",
    "--container-name",
    "--no-container-mount-home",
    "--container-mount-home",
)
ENGINES = "by Apptainer or Singularity", "by Pyxis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that holds the ranks.

    Attributes:
        path: a .sif file, an unpacked folder or, for Pyxis, a .sqsh file that all nodes see.
        python: the interpreter in the image, as a path or a program's name.
        mounts: additional mounts as SOURCE:TARGET[:ro].
        env_file: a file with environment variables on the nodes, or ''.
        arguments: additional options of `apptainer exec` or, with Pyxis, of `srun`, one word each.
    """

    path: str
    python: str = "python3"
    mounts: tuple[str, ...] = ()
    env_file: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """Return the container engine that the image's path implies."""
        return PYXIS if self.path.endswith(SQUASHED) else APPTAINER

    def check(self) -> None:
        """Check that the image can be used on all nodes.

        Raises:
            PlanError: for the first invalid value.
        """
        if "://" in self.path or "#" in self.path:
            raise PlanError(
                f"--image {self.path}: runs do not pull images; name a file that all nodes see.",
                hint="Run `apptainer pull IMAGE.sif docker://NAME` once on the login node, or for Pyxis "
                "`enroot import -o IMAGE.sqsh docker://NAME`.",
            )
        for path in (self.path, *([self.env_file] if self.env_file else ())):
            if not path.startswith("/") or ".." in path.split("/") or not path.isprintable():
                raise PlanError(
                    f"--image-option: {path!r} is not an absolute path.",
                    hint="Name the file as all nodes see it: /shared/images/IMAGE.sif.",
                )
        for mount in self.mounts:
            if not re.fullmatch(r"/[^:,]*:/[^:,]*(:r[ow])?", mount) or not mount.isprintable():
                raise PlanError(f"--image-option mounts={mount}: not SOURCE:TARGET.", hint="Example: /data:/data:ro")
        self.check_arguments()

    def check_arguments(self) -> None:
        """Raise PlanError for the first argument that is malformed, or that orch itself sets."""
        reserved = RESERVED_PYXIS_OPTIONS if self.engine == PYXIS else RESERVED_OPTIONS
        for argument in self.arguments:
            name = argument.partition("=")[0]
            if not re.fullmatch(r"-\w|--[a-z][a-z-]*", name) or not argument.isprintable():
                raise PlanError(
                    f"--image-option arguments={argument}: not an option.",
                    hint="Use it once per option: --image-option arguments=--nv.",
                )
            if name in reserved:
                raise PlanError(
                    f"--image-option arguments={name}: orch sets this option itself.",
                    hint="Leave it out; `--dry-run` shows all options.",
                )

    def options(self, folders: Iterable[str], run_dir: str) -> tuple[str, ...]:
        """Return the engine's options.

        Args:
            folders: folders of the nodes that have the same path in the image.
            run_dir: the folder of the run, in which the ranks start.

        Raises:
            PlanError: if Pyxis cannot mount one of the folders.
        """
        outermost = outermost_folders(folders)
        if self.engine == PYXIS:
            mounts = ",".join((*map(pyxis_mount, outermost), *self.mounts))
            settings = ("--no-container-mount-home", f"--container-workdir={run_dir}")
            return (f"--container-mounts={mounts}", *settings, *self.arguments)
        return (
            # Packages in the user's home would take precedence over the image's, so ranks use /tmp as home.
            *("--cleanenv", "--no-home", "--home", "/tmp", "--pwd", run_dir),
            *(option for folder in outermost for option in ("--mount", bind(folder))),
            *(option for mount in self.mounts for option in ("--bind", mount)),
            *self.arguments,
        )

    def file(self, folders: Iterable[str], run_dir: str, *, preload: tuple[str, ...]) -> str:
        """Return the text of container.json.

        Args:
            folders: folders of the nodes that have the same path in the image.
            run_dir: the folder of the run, in which the ranks start.
            preload: the names of libraries to preload if the image has them.
        """
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


def pyxis_mount(folder: str) -> str:
    """Return the value of --container-mounts for a folder.

    Raises:
        PlanError: if the folder's name has a comma or a colon; the option knows no quotes.
    """
    if set(folder) & set(",:"):
        raise PlanError(
            f"Pyxis cannot mount {folder}: its name contains a comma or a colon.",
            hint="Rename the folder, or use an image of Apptainer.",
        )
    return f"{folder}:{folder}"


def choose_image(image: Image | None, launcher: str) -> Choice[Image | None]:
    """Return the image for the ranks, or None, with the decision to print.

    Raises:
        PlanError: if the image is invalid, or does not work with the launcher.
    """
    if image is None:
        return Choice(None)
    image.check()
    by_pyxis = image.engine == PYXIS
    if by_pyxis and launcher != "srun":
        raise PlanError(
            f"--launcher {launcher}: Pyxis only runs ranks that srun starts.",
            hint="Leave --launcher out, or use an image of Apptainer: --image IMAGE.sif.",
        )
    reason = f"{ENGINES[by_pyxis]}, one for each rank, on its {image.python}"
    return Choice(image, (Decision(topic="container", value=image.path, reason=reason),))
