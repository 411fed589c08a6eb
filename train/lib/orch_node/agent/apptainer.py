"""Ranks in an image that Apptainer, Singularity or Pyxis holds: a container is there for as long as
its rank, has the node's processes, network and shared memory, and leaves nothing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from orch_node.agent.engines import ContainerError, answer
from orch_node.protocol.container import PYXIS, ContainerSpec

PROGRAMS = ("apptainer", "singularity")
SECONDS = 60.0  # an image that is read for the first time from a shared file system
CURES = {
    "user namespace": "An administrator allows them on the nodes (user.max_user_namespaces), or "
    "installs apptainer-suid.",
    "executable file not found": "--slurm container-python=PATH names the Python of the image.",
    "mount source": "Every node must have what is mounted.",
    "fuse": "Its file can be mounted on no node without squashfuse and /dev/fuse: ask for them, or "
    "take a folder: apptainer build --sandbox FOLDER IMAGE.",
}


def before(spec: ContainerSpec, marks: Sequence[str] = ()) -> list[str]:
    """The words before those of a program in the image. Pyxis has its ranks in there already."""
    if spec.engine == PYXIS:
        return []
    return [program(), "exec", *spec.options, *marks, spec.image]


def program() -> str:
    """Raises ContainerError."""
    found = next((one for one in PROGRAMS if shutil.which(one)), None)
    if found is None:
        raise ContainerError(
            f"neither {' nor '.join(PROGRAMS)} is on PATH. Load the site's module before "
            "`orch train`, or run without --container"
        )
    return found


def check(spec: ContainerSpec) -> None:
    """Start the image's Python once. Raises ContainerError."""
    if spec.engine == PYXIS:
        return
    if not Path(spec.image).exists():
        raise ContainerError(f"{spec.image} is not there. All nodes must see the image")
    try:
        answer([*before(spec), spec.python, "-c", ""], seconds=SECONDS)
    except ContainerError as error:
        raise ContainerError(explained(str(error))) from None


def explained(text: str) -> str:
    """Its words without colours, and what to do about it."""
    lines = [line.partition(": ")[2].strip() or line for line in text.splitlines() if line.strip()]
    words = next((line for line in lines if any(sign in line for sign in CURES)), lines[-1])
    cures = [cure for sign, cure in CURES.items() if sign in words]
    return ". ".join([words.replace("\x1b[0m", "").rstrip(". "), *cures[:1]])
