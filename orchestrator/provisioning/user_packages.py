"""The user's packages in a wheelhouse, in addition to those of the stack."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from orchestrator.errors import ExecuteError
from orchestrator.files import exclusive, link_or_copy, write_whole
from orchestrator.load.packages import lock_packages
from orchestrator.model.packages import Requirements
from orchestrator.model.platform import Platform
from orchestrator.provisioning.pip import platform_options, run_pip
from orchestrator.provisioning.wheelhouse import LOCK, Wheelhouse, describe_wheel, load_wheelhouse, lock_file

ANY_PLATFORM = "-none-any.whl"  # ends the name of a wheel that is pure Python


def add_packages(
    house: Wheelhouse, requirements: Requirements | None, platform: Platform, stack: str, notify: Callable[[str], None]
) -> Wheelhouse:
    """Return a wheelhouse that also has the packages that are required and that the stack lacks.

    Args:
        house: the wheelhouse of the stack.
        requirements: the user's packages, or None.
        platform: the platform of the wheelhouse.
        stack: the name of the stack.
        notify: receives a line before packages are downloaded, and one with their versions.

    Raises:
        RequestError: if the requirements do not fit the stack.
        ExecuteError: if a package cannot be downloaded, has another hash, or has no wheel and is not pure Python.
    """
    if requirements is None:
        return house
    installed = {wheel.name: wheel.version for wheel in house.lock}
    lock = lock_packages(requirements, installed, platform, stack, wheels=str(house.folder))
    if not lock:
        return house
    content = json.dumps([lock, [wheel.sha256 for wheel in house.wheels]])
    folder = house.folder / f"packages-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    with exclusive(lock_file(house.folder.name)):
        extended = load_wheelhouse(folder)
        if extended is None:
            notify(f"packages: downloading those of {requirements.source} (once)")
            extended = download(folder, house, requirements, lock, platform)
    added = [wheel for wheel in extended.wheels if wheel.name not in installed and wheel.name != house.uv.name]
    listing = ", ".join(f"{wheel.name} {wheel.version}" for wheel in added)
    notify(f"packages: {listing} ({requirements.source})")
    return replace(extended, added=frozenset(wheel.name for wheel in added))


def download(folder: Path, house: Wheelhouse, requirements: Requirements, lock: str, platform: Platform) -> Wheelhouse:
    """Create the folder with the wheels of a wheelhouse and those of a lock."""
    new = Path(tempfile.mkdtemp(prefix=".packages-", dir=house.folder))
    try:
        # pip and uv read the same lines about indexes.
        indexes = "".join(f"{line}\n" for line in requirements.lines if line.startswith("-"))
        problem = f"pip cannot download the packages of {requirements.source}"
        options = ["--quiet", "--no-deps", "--require-hashes"]
        wheels_only = ["--dest", str(new), *platform_options(platform)]
        listing = new / "lock.txt"
        listing.write_text(indexes + lock)
        try:
            run_pip("download", *options, *wheels_only, "--requirement", str(listing), problem=problem)
        except ExecuteError:  # a package has no wheel: pip builds those that are pure Python
            for line in filter(None, lock.replace("\\\n", " ").splitlines()):
                listing.write_text(f"{indexes}{line}\n")
                download_or_build(new, listing, [*options, "--requirement", str(listing)], wheels_only, problem)
        listing.unlink()
        added = [describe_wheel(path) for path in sorted(new.glob("*.whl"))]
        for wheel in house.wheels:
            link_or_copy(house.folder / wheel.file, new / wheel.file)
        wheels = (*house.wheels, *added)
        write_whole(new / LOCK, json.dumps([asdict(wheel) for wheel in wheels], indent=1) + "\n")
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return Wheelhouse(folder=folder, wheels=wheels)


def download_or_build(folder: Path, listing: Path, options: list[str], wheels_only: list[str], problem: str) -> None:
    """Download the wheel of the one package in a requirements file, or else build it.

    Raises:
        ExecuteError: with pip's error, if there is no wheel and the package is not pure Python.
    """
    try:
        run_pip("download", *options, *wheels_only, problem=problem)
    except ExecuteError as error:
        with tempfile.TemporaryDirectory(dir=folder) as built:
            run_pip("wheel", *options, "--wheel-dir", built, problem=problem)
            (wheel,) = Path(built).glob("*.whl")
            if not wheel.name.endswith(ANY_PLATFORM):  # compiled on this machine, from which the nodes may differ
                raise error from None
            wheel.rename(folder / wheel.name)
