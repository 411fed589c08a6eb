"""Run the ranks in an image: with Apptainer or Singularity, or with a program of the batch system. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from orch_node.protocol import container
from orch_node.protocol.container import APPTAINER, ContainerSpec

from orchestrator.errors import PlanError
from orchestrator.model.decision import Choice, Decision
from orchestrator.planning.containers import bind, outermost_folders

NAMES = ("python", "mounts", "env_file", "arguments")
LISTS = ("mounts", "arguments")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageEngine:
    """A program that runs ranks in an image.

    Attributes:
        name: the name in container.json.
        title: the name in messages.
        format: the images that it runs, in messages.
        pull: the command that creates such an image.
        reserved: the options that orch itself sets: they affect how ranks are started, reached and ended.
        options: returns the options for an image, given folders that have the same path in it, and the
            folder of the run, in which the ranks start; raises PlanError for a folder that cannot be mounted.
        launcher: the only launcher that can start the ranks in the image; '' if any launcher can.
    """

    name: str
    title: str
    format: str
    pull: str
    reserved: tuple[str, ...]
    options: Callable[[Image, list[str], str], tuple[str, ...]]
    launcher: str = ""


def apptainer_options(image: Image, folders: list[str], run_dir: str) -> tuple[str, ...]:
    """Return the options of `apptainer exec`."""
    return (
        # Packages in the user's home would take precedence over the image's, so ranks use /tmp as home.
        *("--cleanenv", "--no-home", "--home", "/tmp", "--pwd", run_dir),
        *(option for folder in folders for option in ("--mount", bind(folder))),
        *(option for mount in image.mounts for option in ("--bind", mount)),
        *image.arguments,
    )


APPTAINER_ENGINE = ImageEngine(
    name=APPTAINER,
    title="Apptainer or Singularity",
    format="a .sif file or a folder of Apptainer",
    pull="apptainer pull IMAGE.sif docker://NAME",
    reserved=RESERVED_OPTIONS,
    options=apptainer_options,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that holds the ranks.

    Attributes:
        path: a file or an unpacked folder that all nodes see.
        python: the interpreter in the image, as a path or a program's name.
        mounts: additional mounts as SOURCE:TARGET[:ro].
        env_file: a file with environment variables on the nodes, or ''.
        arguments: additional options of the engine, one word each.
        engine: the program that runs the image.
    """

    path: str
    python: str = "python3"
    mounts: tuple[str, ...] = ()
    env_file: str = ""
    arguments: tuple[str, ...] = ()
    engine: ImageEngine = APPTAINER_ENGINE

    def check(self, engines: Iterable[ImageEngine]) -> None:
        """Check that the image can be used on all nodes.

        Args:
            engines: the programs that the batch system can run images with.

        Raises:
            PlanError: for the first invalid value.
        """
        if "://" in self.path or "#" in self.path:
            raise PlanError(
                f"--image {self.path}: runs do not pull images; name a file that all nodes see.",
                hint=f"Run {' or '.join(f'`{engine.pull}`' for engine in engines)} once on the login node.",
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
        for argument in self.arguments:
            name = argument.partition("=")[0]
            if not re.fullmatch(r"-\w|--[a-z][a-z-]*", name) or not argument.isprintable():
                raise PlanError(
                    f"--image-option arguments={argument}: not an option.",
                    hint="Use it once per option: --image-option arguments=--nv.",
                )
            if name in self.engine.reserved:
                raise PlanError(
                    f"--image-option arguments={name}: orch sets this option itself.",
                    hint="Leave it out; `--dry-run` shows all options.",
                )

    def file(self, folders: Iterable[str], run_dir: str, *, preload: tuple[str, ...]) -> str:
        """Return the text of container.json.

        Args:
            folders: folders of the nodes that have the same path in the image.
            run_dir: the folder of the run, in which the ranks start.
            preload: the names of libraries to preload if the image has them.

        Raises:
            PlanError: if the engine cannot mount one of the folders.
        """
        return container.render(
            ContainerSpec(
                image=self.path,
                start="rank",
                python=self.python,
                preload=preload,
                processes={},
                options=self.engine.options(self, list(outermost_folders(folders)), run_dir),
                env_file=self.env_file,
                engine=self.engine.name,
            )
        )


def choose_image(image: Image | None, launcher: str, engines: Iterable[ImageEngine]) -> Choice[Image | None]:
    """Return the image for the ranks, or None, with the decision to print.

    Raises:
        PlanError: if the image is invalid, or does not work with the launcher.
    """
    if image is None:
        return Choice(None)
    image.check(engines)
    engine = image.engine
    if engine.launcher and launcher != engine.launcher:
        raise PlanError(
            f"--launcher {launcher}: {engine.title} only runs ranks that {engine.launcher} starts.",
            hint="Leave --launcher out, or use an image of Apptainer: --image IMAGE.sif.",
        )
    reason = f"by {engine.title}, one for each rank, on its {image.python}"
    return Choice(image, (Decision(topic="image", value=image.path, reason=reason),))
