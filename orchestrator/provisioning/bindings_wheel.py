"""The wheel of the ccl bindings, built from the sources in bindings/."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from orch_node import atomic_write
from orch_node.standalone.facts import packages

from orchestrator.errors import RequestError
from orchestrator.files import PUBLIC, SHARE, sha256, short_digest, write_whole
from orchestrator.model.packages import Platform
from orchestrator.provisioning import pip
from orchestrator.stacks.compatibility import builds_bindings
from orchestrator.stacks.stack import BINDINGS, TORCH, Stack, same_version

BUILD_RECORD = "made-of.json"  # in the folder of the wheel
WHEELS = "oneccl_bind_pt-*.whl"
TOOLS = ("setuptools>=77",)  # bindings/pyproject.toml also names pip, which runs the build


def sources_digest() -> str:
    """Return a digest of all sources of the bindings."""
    return short_digest(sources(SHARE / "bindings"), SHARE)


def sources(bindings: Path) -> Iterator[Path]:
    """Yield the files from which the bindings are built, in a fixed order."""
    for path in sorted(bindings.rglob("*")):
        generated = "build" in path.relative_to(bindings).parts or path.name == "_built.py"
        if path.suffix in {".cpp", ".h", ".c", ".py", ".toml"} and not generated:
            yield path


def find_wheel(folder: Path, torch: str) -> Path | None:
    """Return the wheel in a folder, None unless it was built from these sources, torch and compiler flags."""
    try:
        unchanged = json.loads((folder / BUILD_RECORD).read_text()) == build_record(torch)
    except (OSError, ValueError):
        return None
    return next(folder.glob(WHEELS), None) if unchanged else None


def record_build(folder: Path, torch: str) -> None:
    """Write what the wheel in a folder was built from."""
    write_whole(folder / BUILD_RECORD, json.dumps(build_record(torch)) + "\n", mode=PUBLIC)


def build_record(torch: str) -> dict[str, str]:
    """Return what a build depends on; `torch` is its version with the local part."""
    return {"torch": torch, "of": sources_digest(), "flags": os.environ.get("CXXFLAGS", "")}


def needs_build(stack: Stack, find_links: tuple[str, ...]) -> bool:
    """Return whether orch has to build the stack's bindings, because no --find-links folder has them."""
    provided = any(path for folder in find_links for path in Path(folder).glob(WHEELS))
    return builds_bindings(stack) and BINDINGS in stack.requirements and not provided


def check_platform(platform: Platform) -> None:
    """Check that the bindings that this machine builds work on a platform.

    Raises:
        RequestError: if the platform has another Python or another processor architecture.
    """
    local = pip.local_platform()
    if (platform.python, platform.machine) != (local.python, local.machine):
        raise RequestError.about("bindings-of-platform", bindings=BINDINGS, local=local, platform=platform)


def build_wheel(stack: Stack, cache: Path) -> Path:
    """Return the folder of the bindings' wheel for the stack's torch; build it if it is missing.

    The caller excludes concurrent builds: all of them share the folder `build` of the sources.

    Raises:
        ExecuteError: if pip fails.
    """
    target = cache / f"bindings-{stack.torch}-{sources_digest()}"
    if any(target.glob("*.whl")):
        return target
    torch = next((package.version for package in distributions(name=TORCH)), "")
    prefix = Path(sys.prefix)
    if target.exists():
        shutil.rmtree(target)
    with atomic_write.folder(target) as staging:
        if not same_version(torch, stack.torch):
            build((f"{TORCH}=={stack.torch}", "numpy"), staging, stack, cache)
        # `orch setup` records the torch for which it has built a wheel.
        elif wheel := find_wheel(prefix / "wheels", packages(prefix).get(TORCH, torch)):
            shutil.copy(wheel, staging)
        else:
            build((), staging, stack, cache)
    return target


def build(requirements: tuple[str, ...], target: Path, stack: Stack, cache: Path) -> None:
    """Build the wheel with these packages, in the versions and with the hashes of the stack's lock.

    Raises:
        ExecuteError: if pip fails, or downloads a file with another hash.
    """
    with tempfile.TemporaryDirectory(prefix="torch-", dir=cache) as folder:
        wheels, packages = Path(folder, "wheels"), Path(folder, "packages")
        locked = pip.locked_packages(stack, pip.local_platform())
        with pip.pip_options(locked) as (_, constraints):
            options = ("--quiet", "--only-binary=:all:", "--dest", str(wheels))
            pip.run_pip("download", *options, *pip.index_options(stack), *constraints, *TOOLS, *requirements)
        paths = sorted(wheels.iterdir())
        pip.check_hashes({path.name: sha256(path) for path in paths}, locked)
        pip.run_pip("install", "--quiet", "--no-index", "--no-deps", "--target", str(packages), *map(str, paths))
        command = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target))
        pip.run_pip(*command, str(SHARE / "bindings"), variables={"PYTHONPATH": str(packages)})
