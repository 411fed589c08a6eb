"""Run the ranks in an image with Apptainer or Singularity. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from orch_node.protocol import container
from orch_node.protocol.container import APPTAINER, ContainerSpec

from orchestrator.errors import PlanError
from orchestrator.model.decision import Decision
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
class Image:
    """An image that holds the ranks.

    Attributes:
        path: a file or an unpacked folder that all nodes see.
        python: the interpreter in the image, as a path or a program's name.
        mounts: additional mounts as SOURCE:TARGET[:ro].
        env_file: a file with environment variables on the nodes, or ''.
        arguments: additional options of `apptainer exec`, one word each.
    """

    path: str
    python: str = "python3"
    mounts: tuple[str, ...] = ()
    env_file: str = ""
    arguments: tuple[str, ...] = ()

    def check(self) -> None:
        """Check that the image can be used on all nodes.

        Raises:
            PlanError: for the first invalid value.
        """
        if "://" in self.path or "#" in self.path:
            raise PlanError(
                f"--image {self.path}: runs do not pull images; name a file that all nodes see.",
                hint="Run `apptainer pull IMAGE.sif docker://NAME` once on the login node.",
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
            if name in RESERVED_OPTIONS:
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
        """
        return container.render(
            ContainerSpec(
                image=self.path,
                start="rank",
                python=self.python,
                preload=preload,
                processes={},
                options=self.options(outermost_folders(folders), run_dir),
                env_file=self.env_file,
                engine=APPTAINER,
            )
        )

    def options(self, folders: Iterable[str], run_dir: str) -> tuple[str, ...]:
        """Return the options of `apptainer exec`; these folders have the same path in the image."""
        return (
            # Packages in the user's home would take precedence over the image's, so ranks use /tmp as home.
            *("--cleanenv", "--no-home", "--home", "/tmp", "--pwd", run_dir),
            *(option for folder in folders for option in ("--mount", bind(folder))),
            *(option for mount in self.mounts for option in ("--bind", mount)),
            *self.arguments,
        )

    def describe(self) -> Decision:
        """Return the decision to print."""
        reason = f"by Apptainer or Singularity, one for each rank, on its {self.python}"
        return Decision(topic="image", value=self.path, reason=reason)
