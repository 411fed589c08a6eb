"""Run the programs of container engines; start ranks in images of Apptainer or Singularity.

A container of these two exists as long as its rank, shares the node's processes, network and
memory, and leaves nothing behind.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from orch_node.protocol.container import ContainerSpec

APPTAINER_PROGRAMS = ("apptainer", "singularity")
APPTAINER_SECONDS = 60.0  # the first read of an image on a shared file system takes long
APPTAINER_HINTS = {
    "user namespace": "An administrator must allow user namespaces on the nodes "
    "(user.max_user_namespaces) or install apptainer-suid.",
    "executable file not found": "Set the Python of the image with --image-option python=PATH.",
    "mount source": "Every node must have the mounted folders.",
    "fuse": "Nodes need squashfuse and /dev/fuse to mount an image file: ask for them, or use a "
    "folder: apptainer build --sandbox FOLDER IMAGE.",
}


class ContainerError(Exception):
    """An error of the engine, with a hint if one is known."""


def run_engine(argv: Sequence[str], *, seconds: float) -> str:
    """Run a program of the engine, and return its output.

    Raises:
        ContainerError: if it cannot be started, fails, or takes longer than `seconds`.
    """
    try:
        process = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except OSError as error:
        raise ContainerError(f"{argv[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ContainerError(f"{argv[0]} {argv[1]} did not respond within {seconds:.0f} s") from None
    if process.returncode != 0:
        raise ContainerError(process.stderr.strip() or f"exit code {process.returncode}")
    return process.stdout


def apptainer_prefix(spec: ContainerSpec, options: Sequence[str] = ()) -> list[str]:
    """Return the arguments before those of a program in the image.

    Raises:
        ContainerError: if Apptainer is not installed.
    """
    program = next((name for name in APPTAINER_PROGRAMS if shutil.which(name)), None)
    if program is None:
        raise ContainerError(
            f"neither {' nor '.join(APPTAINER_PROGRAMS)} is on PATH. Load the site's module with the "
            "setting setup='module load NAME', or run without --image"
        )
    return [program, "exec", *spec.options, *options, spec.image]


def check_apptainer(spec: ContainerSpec) -> None:
    """Start the image's Python once.

    Raises:
        ContainerError: if that fails.
    """
    if not Path(spec.image).exists():
        raise ContainerError(f"the image {spec.image} does not exist on this node. All nodes must have it")
    try:
        run_engine([*apptainer_prefix(spec), spec.python, "-c", ""], seconds=APPTAINER_SECONDS)
    except ContainerError as error:
        raise ContainerError(explain_apptainer_error(str(error))) from None


def explain_apptainer_error(text: str) -> str:
    """Return the line of Apptainer's output that names the error, without colors, and a hint."""
    lines = [line.partition(": ")[2].strip() or line for line in text.splitlines() if line.strip()]
    message = next((line for line in lines if any(sign in line for sign in APPTAINER_HINTS)), lines[-1])
    hints = [hint for sign, hint in APPTAINER_HINTS.items() if sign in message]
    return ". ".join([message.replace("\x1b[0m", "").rstrip(". "), *hints[:1]])
