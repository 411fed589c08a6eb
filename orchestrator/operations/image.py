"""Build, save and push the container image of a stack."""

from __future__ import annotations

import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ExecuteError, PlanError
from orchestrator.files import TRAIN, link_or_copy, render_template, sha256
from orchestrator.model.packages import Platform, Requirements
from orchestrator.provisioning import wheelhouse
from orchestrator.provisioning.wheelhouse import sbom
from orchestrator.stacks.stack import GLIBC, IMAGE_NAME, Stack, python_for, python_of
from orchestrator.targets.interface import Notify

LARGE_WHEEL_BYTES = 20_000_000  # wheels of this size get a separate layer
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackImage:
    """An image to build."""

    stack: Stack
    tag: str
    base: str  # an image with Python, by tag or pinned by digest
    python: str  # its version
    engine: str = "docker"


def make_image(
    stack: Stack, *, tag: str | None, engine: str, base: str | None = None, python: str | None = None
) -> StackImage:
    """Return the image of a stack, with defaults for tag and base, and the Python that the name of the base states.

    Raises:
        PlanError: if tag or base is not the name of an image.
    """
    tag, base = tag or f"orch:{stack.name}", base or f"python:{python_for(stack)}-slim-bookworm"
    for option, name in (("--tag", tag), ("--base", base)):
        if not IMAGE_NAME.fullmatch(name):
            raise PlanError.about("image-name", option=option, name=name)
    return StackImage(stack=stack, tag=tag, base=base, python=python or python_of(base, stack), engine=engine)


def dockerfile(image: StackImage, packages: Sequence[str] = ()) -> str:
    """Return the text of the Dockerfile.

    Args:
        image: the image.
        packages: the user's packages among the wheels, as NAME==VERSION.
    """
    return render_template("image/Dockerfile.j2", stack=image.stack, base=image.base, packages=packages)


def lay_out(
    image: StackImage, context: Path, find_links: tuple[str, ...], notify: Notify, requirements: Requirements | None
) -> None:
    """Create the build context: the Dockerfile, the wheels of the stack and the user, and orch's programs.

    Args:
        image: the image.
        context: the folder of the build context.
        find_links: folders of wheels that no index has.
        notify: receives the progress of slow steps.
        requirements: the user's packages.

    Raises:
        RequestError: if the user's packages do not fit the stack.
        ExecuteError: if a wheel cannot be downloaded or built.
    """
    stack = image.stack.for_backend(image.stack.backends[0])
    target = Platform(python=image.python, machine=platform.machine(), libc=GLIBC)
    prepared = wheelhouse.prepare_wheelhouse(stack, target, find_links, notify, requirements)
    shutil.rmtree(context / "wheels", ignore_errors=True)
    for wheel in prepared.lock:  # large wheels, such as torch, change rarely and get a separate layer
        part = context / "wheels" / ("large" if wheel.size >= LARGE_WHEEL_BYTES else "other")
        part.mkdir(parents=True, exist_ok=True)
        link_or_copy(prepared.folder / wheel.file, part / wheel.file)
    shutil.copytree(TRAIN, context / "train", ignore=LEFT_OUT, dirs_exist_ok=True)
    (context / "sbom.json").write_text(sbom(image.tag, prepared.lock))
    packages = [f"{wheel.name}=={wheel.version}" for wheel in prepared.wheels if wheel.name in prepared.added]
    (context / "Dockerfile").write_text(dockerfile(image, packages))


def check_engine(engine: str) -> None:
    """Raise ExecuteError if the engine is not installed, before gigabytes are downloaded."""
    if shutil.which(engine) is None:
        raise ExecuteError.about("missing-engine", engine=engine)


def build(image: StackImage, context: Path) -> str:
    """Build the image and return its digest, or its ID if it is in no registry yet.

    Raises:
        ExecuteError: if the engine fails.
    """
    run(image.engine, "build", "--tag", image.tag, str(context), problem="image-build")
    return digest_of(image)


def save(image: StackImage, path: Path) -> str:
    """Save the image to a file and return the SHA-256 of the file.

    Raises:
        ExecuteError: if the engine fails.
    """
    run(image.engine, "save", "--output", str(path), image.tag)
    return sha256(path)


def push(image: StackImage) -> str:
    """Push the image and return its name with the digest in the registry.

    Raises:
        ExecuteError: if the engine fails.
    """
    run(image.engine, "push", image.tag, problem="image-push")
    return digest_of(image)


def digest_of(image: StackImage) -> str:
    """Return the digest of the image in the registry, or its ID if it is in none."""
    form = "{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}"
    return run(image.engine, "image", "inspect", "--format", form, image.tag, capture=True).strip()


def run(*command: str, capture: bool = False, problem: str = "image-command") -> str:
    """Run the engine with its output on standard error, or return the output if it is captured.

    Raises:
        ExecuteError: if the engine does not start or fails.
    """
    check_engine(command[0])
    output = subprocess.PIPE if capture else sys.stderr
    done = subprocess.run(command, stdout=output, stdin=subprocess.DEVNULL, text=True)
    if done.returncode != 0:
        values = {"command": shlex.join(command), "code": done.returncode, "engine": command[0]}
        raise ExecuteError.about(problem, **values)
    return done.stdout or ""
