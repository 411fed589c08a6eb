"""`orch image`: lay out a context, let the engine build it, save it to a file, push it."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from orchestrator.errors import ExecuteError
from orchestrator.files import link_or_copy, sha256
from orchestrator.model.command import Command
from orchestrator.paths import STANDALONE, TRAIN
from orchestrator.provisioning import wheelhouse
from orchestrator.provisioning.plan import Platform
from orchestrator.provisioning.sbom import sbom
from orchestrator.provisioning.wheelhouse import Wheel
from orchestrator.stacks.image import GLIBC, Image, python_of

LARGE_BYTES = 20_000_000  # of a wheel
SLIM = ("slim.py", "symbols.py")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


def lay_out(
    image: Image, context: Path, find_links: tuple[str, ...], python: str | None, tell: Callable[[str], None]
) -> None:
    """Fill a folder with the Dockerfile, the stack's wheels and orch's programs."""
    stack = image.stack.for_backend(image.stack.backends[0])
    target = Platform(python=python or python_of(image.base, stack), machine=platform.machine(), libc=GLIBC)
    for line in wheelhouse.slow_steps(stack, target, find_links):
        tell(line)
    house = wheelhouse.prepare_wheelhouse(stack, target, find_links)
    lay_wheels(house.folder, house.lock, context / "wheels")
    shutil.copytree(TRAIN, context / "train", ignore=LEFT_OUT, dirs_exist_ok=True)
    for name in SLIM:
        shutil.copyfile(STANDALONE / name, context / name)
    (context / "sbom.json").write_text(json.dumps(sbom(image.tag, house.lock), indent=1) + "\n")
    (context / "Dockerfile").write_text(image.dockerfile())


def lay_wheels(house: Path, wheels: Iterable[Wheel], folder: Path) -> None:
    """The large ones, torch before all, apart: they change seldom, and are a layer of their own."""
    shutil.rmtree(folder, ignore_errors=True)
    for wheel in wheels:
        part = folder / ("large" if wheel.size >= LARGE_BYTES else "other")
        part.mkdir(parents=True, exist_ok=True)
        link_or_copy(house / wheel.file, part / wheel.file)


def check_engine(engine: str) -> None:
    """Before gigabytes are fetched. Raises ExecuteError."""
    if shutil.which(engine) is None:
        raise not_started(engine, "it is not installed")


def build(image: Image, context: Path) -> str:
    """-> the image's digest, or its id where no registry has it yet. Raises ExecuteError."""
    run(
        image.build(str(context)),
        hint=f"The engine said why, above. Where it cannot pull {image.base}, --base names another image with Python.",
    )
    return run(image.digest(), capture=True).strip()


def save(image: Image, path: Path) -> str:
    """-> SHA-256 of the file. Raises ExecuteError."""
    run(image.save(str(path)))
    return sha256(path)


def push(image: Image) -> str:
    """-> the name by digest that the registry has given it. Raises ExecuteError."""
    run(
        image.push(),
        hint="The engine said why, above. The name begins with its registry (--tag "
        f"registry.example/orch:current); `{image.engine} login` makes you known there.",
    )
    return run(image.digest(), capture=True).strip()


def run(command: Command, *, capture: bool = False, hint: str = "") -> str:
    """The engine's words go to standard error, or are the answer."""
    output = subprocess.PIPE if capture else sys.stderr
    try:
        done = subprocess.run(command.argv, stdout=output, stdin=subprocess.DEVNULL, text=True)
    except OSError as error:
        raise not_started(command.argv[0], str(error.strerror)) from None
    if done.returncode != 0:
        words = f"`{command.shell()}` failed with exit code {done.returncode}."
        raise ExecuteError(words, hint=hint)
    return done.stdout or ""


def not_started(engine: str, why: str) -> ExecuteError:
    return ExecuteError(
        f"{engine} cannot be started: {why}.",
        hint="--engine podman, or install docker; --dry-run prints the Dockerfile.",
    )
