"""Wheelhouses: all wheels of a stack for one platform and of the user's packages, downloaded once by pip."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orch_node import atomic_write
from packaging.utils import canonicalize_name

from orchestrator.errors import ExecuteError
from orchestrator.files import cache_home, exclusive, link_or_copy, private_folder, render_template, sha256, write_whole
from orchestrator.load.packages import lock_packages
from orchestrator.model.packages import Platform, Requirements
from orchestrator.provisioning import pip
from orchestrator.provisioning.bindings_wheel import build_wheel, check_platform, needs_build, sources_digest
from orchestrator.stacks.stack import BINDINGS, Stack

UV = "uv==0.13.8"
FORMAT = 3  # part of a wheelhouse's name: another format is another wheelhouse
LOCK = "lock.json"
ANY_PLATFORM = "-none-any.whl"  # ends the name of a wheel that is pure Python


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A file of a wheelhouse."""

    name: str  # of the package, normalized (PEP 503)
    version: str
    file: str
    sha256: str
    size: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheelhouse:
    """A folder with all wheels of a stack for one platform."""

    folder: Path
    wheels: tuple[Wheel, ...]
    unpublished: frozenset[str] = frozenset()  # the names of packages that no index has
    added: frozenset[str] = frozenset()  # the names of the user's packages

    @property
    def lock(self) -> tuple[Wheel, ...]:
        """Return the packages of a node's environment: all but the installer."""
        return tuple(wheel for wheel in self.wheels if wheel.name != "uv")

    def variables(self) -> dict[str, object]:
        """Return the variables of the role `stack`, which always copies the packages in `own`."""
        uv = next(wheel for wheel in self.wheels if wheel.name == "uv")  # not the one that the user's packages require
        return {
            "own": sorted((self.unpublished | self.added) & {wheel.name for wheel in self.lock}),
            "folder": str(self.folder),
            "lock": [asdict(wheel) for wheel in self.lock],
            "uv": asdict(uv),
        }


def prepare_wheelhouse(
    stack: Stack,
    platform: Platform,
    find_links: tuple[str, ...],
    notify: Callable[[str], None],
    requirements: Requirements | None = None,
) -> Wheelhouse:
    """Return the wheelhouse of a stack, with the user's packages; download it if it is missing or incomplete.

    Args:
        stack: the stack.
        platform: the platform of the wheels.
        find_links: folders of wheels that no index has.
        notify: receives a line before each step that takes long.
        requirements: the user's packages.

    Raises:
        RequestError: if the requirements do not fit the stack.
        ExecuteError: with pip's errors.
    """
    folder = wheelhouse_folder(stack, platform, find_links)
    with exclusive(lock_file(folder.name)):
        prepared = load_wheelhouse(folder) or download(folder, stack, platform, find_links, notify)
    provided = {package_of(path) for links in find_links for path in Path(links).glob("*.whl")}
    built = {canonicalize_name(BINDINGS)} if needs_build(stack, find_links) else set()
    prepared = replace(prepared, unpublished=frozenset(provided | built))
    return add_packages(prepared, requirements, platform, stack.name, notify) if requirements else prepared


def cache() -> Path:
    """Return the folder of all wheelhouses."""
    return private_folder(cache_home() / "wheelhouses")


def lock_file(name: str) -> Path:
    """Return the file of the cache by which one process at a time makes a folder."""
    return cache() / f".{name}.lock"


def download(
    folder: Path, stack: Stack, platform: Platform, find_links: tuple[str, ...], notify: Callable[[str], None]
) -> Wheelhouse:
    """Download all wheels of a stack and write their lock."""
    links = find_links
    if needs_build(stack, find_links):
        check_platform(platform)
        notify("wheelhouse: building the ccl bindings (takes minutes, once)")
        with exclusive(lock_file("bindings")):
            links += (str(build_wheel(stack, cache())),)
    notify(f"wheelhouse: downloading the wheels of {stack.name} for {platform.key} (once)")
    # A retry uses the same folder: pip does not download again what an interrupted attempt has completed.
    folder.mkdir(exist_ok=True, mode=0o700)
    download_wheels(stack, platform, folder, links)
    wheels = [describe_wheel(path) for path in sorted(folder.glob("*.whl"))]
    pip.check_hashes({wheel.file: wheel.sha256 for wheel in wheels}, pip.locked_packages(stack, platform))
    return complete(folder, wheels)


def complete(folder: Path, wheels: Sequence[Wheel]) -> Wheelhouse:
    """Return the wheelhouse in a folder whose wheels are all there, after recording that."""
    write_whole(folder / LOCK, json.dumps([asdict(wheel) for wheel in wheels], indent=1) + "\n")
    return Wheelhouse(folder=folder, wheels=tuple(wheels))


def wheelhouse_folder(stack: Stack, platform: Platform, find_links: tuple[str, ...]) -> Path:
    """Return the folder of a wheelhouse, whose name changes with everything that changes its wheels."""
    paths = [path for folder in find_links for path in sorted(Path(folder).glob("*.whl"))]
    user_wheels = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    content = [
        FORMAT,
        UV,
        sorted(stack.requirements.items()),
        sorted(stack.without_dependencies),
        user_wheels,
        sources_digest() if needs_build(stack, find_links) else "",
        [package.line for package in pip.locked_packages(stack, platform)],
    ]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
    return cache() / f"{stack.name}-{platform.key}-{digest}"


def load_wheelhouse(folder: Path) -> Wheelhouse | None:
    """Return a complete wheelhouse, or None; nodes detect damaged wheels by their hashes."""
    try:
        wheels = tuple(Wheel(**record) for record in json.loads((folder / LOCK).read_text()))
        is_complete = all((folder / wheel.file).stat().st_size == wheel.size for wheel in wheels)
    except (OSError, ValueError, TypeError):
        return None
    return Wheelhouse(folder=folder, wheels=wheels) if is_complete else None


def download_wheels(stack: Stack, platform: Platform, folder: Path, find_links: tuple[str, ...]) -> None:
    """Download the wheels of a stack: those of its lock by their hashes, then all others."""
    packages = pip.locked_packages(stack, platform)
    locked = {package.name for package in packages}
    unlocked = sorted(name for name in stack.requirements if canonicalize_name(name) not in locked)
    pins = {name: f"{name}=={stack.requirements[name]}" for name in unlocked}
    without_dependencies = [pins.pop(name) for name in stack.without_dependencies if name in pins]
    with_dependencies = [*pins.values(), *([] if "uv" in locked else [UV])]
    options = ["--quiet", "--dest", str(folder), *pip.platform_options(platform)]
    sources = [option for path in find_links for option in ("--find-links", path)] + pip.index_options(stack)
    with pip.pip_options(packages) as (hashed, constraints):
        if packages:
            pip.run_pip("download", *options, *hashed)
            sources = ["--find-links", str(folder), *sources]
        if with_dependencies:
            pip.run_pip("download", *sources, *options, *constraints, *with_dependencies)
        if without_dependencies:
            pip.run_pip("download", *sources, *options, "--no-deps", *without_dependencies)


def describe_wheel(path: Path) -> Wheel:
    """Return the entry of a wheel in the lock."""
    _, version, *_ = path.name.split("-")
    return Wheel(name=package_of(path), version=version, file=path.name, sha256=sha256(path), size=path.stat().st_size)


def package_of(wheel: Path) -> str:
    """Return the normalized name of a wheel's package."""
    return canonicalize_name(wheel.name.partition("-")[0])


def sbom(name: str, wheels: Iterable[Wheel], *, kind: str = "container") -> str:
    """Return the packages with their SHA-256 as JSON of CycloneDX 1.5.

    Args:
        name: of the component that has the packages.
        wheels: the packages.
        kind: CycloneDX's type of the component.
    """
    wheels = sorted(wheels, key=lambda wheel: wheel.name)
    return render_template("image/sbom.json.j2", name=name, kind=kind, wheels=wheels)


def add_packages(
    wheelhouse: Wheelhouse, requirements: Requirements, platform: Platform, stack: str, notify: Callable[[str], None]
) -> Wheelhouse:
    """Return a wheelhouse that also has the packages that are required and that the stack lacks.

    Args:
        wheelhouse: the wheelhouse of the stack.
        requirements: the user's packages.
        platform: the platform of the wheelhouse.
        stack: the name of the stack.
        notify: receives a line before packages are downloaded, and one with their versions.

    Raises:
        RequestError: if the requirements do not fit the stack.
        ExecuteError: if a package cannot be downloaded, has another hash, or has no wheel and is not pure Python.
    """
    installed = {wheel.name: wheel.version for wheel in wheelhouse.lock}
    lock = lock_packages(requirements, installed, platform, stack, wheels=str(wheelhouse.folder))
    if not lock:
        return wheelhouse
    content = json.dumps([lock, [wheel.sha256 for wheel in wheelhouse.wheels]])
    folder = wheelhouse.folder / f"packages-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    with exclusive(lock_file(wheelhouse.folder.name)):
        extended = load_wheelhouse(folder)
        if extended is None:
            notify(f"packages: downloading those of {requirements.source} (once)")
            extended = download_packages(folder, wheelhouse, requirements, lock, platform)
    added = {wheel.name: f"{wheel.name} {wheel.version}" for wheel in extended.lock if wheel.name not in installed}
    notify(f"packages: {', '.join(added.values())} ({requirements.source})")
    return replace(extended, unpublished=wheelhouse.unpublished, added=frozenset(added))


def download_packages(
    folder: Path, wheelhouse: Wheelhouse, requirements: Requirements, lock: str, platform: Platform
) -> Wheelhouse:
    """Create the folder with the wheels of a wheelhouse and those of a lock."""
    if folder.exists():  # incomplete
        shutil.rmtree(folder)
    with atomic_write.folder(folder) as new:
        # pip and uv read the same lines about indexes.
        indexes = "".join(f"{line}\n" for line in requirements.lines if line.startswith("-"))
        problem = f"pip cannot download the packages of {requirements.source}"
        options = ["--quiet", "--no-deps", "--require-hashes"]
        wheels_only = ["--dest", str(new), *pip.platform_options(platform)]
        listing = new / "lock.txt"
        listing.write_text(indexes + lock)
        try:
            pip.run_pip("download", *options, *wheels_only, "--requirement", str(listing), problem=problem)
        except ExecuteError:  # a package has no wheel: pip builds those that are pure Python
            for line in filter(None, lock.replace("\\\n", " ").splitlines()):
                listing.write_text(f"{indexes}{line}\n")
                download_or_build(new, listing, [*options, "--requirement", str(listing)], wheels_only, problem)
        listing.unlink()
        added = [describe_wheel(path) for path in sorted(new.glob("*.whl"))]
        for wheel in wheelhouse.wheels:
            link_or_copy(wheelhouse.folder / wheel.file, new / wheel.file)
        extended = complete(new, (*wheelhouse.wheels, *added))
    return replace(extended, folder=folder)


def download_or_build(folder: Path, listing: Path, options: list[str], wheels_only: list[str], problem: str) -> None:
    """Download the wheel of the one package in a requirements file, or else build it.

    Raises:
        ExecuteError: with pip's error, if there is no wheel and the package is not pure Python.
    """
    try:
        pip.run_pip("download", *options, *wheels_only, problem=problem)
    except ExecuteError as error:
        with tempfile.TemporaryDirectory(dir=folder) as built:
            pip.run_pip("wheel", *options, "--wheel-dir", built, problem=problem)
            (wheel,) = Path(built).glob("*.whl")
            if not wheel.name.endswith(ANY_PLATFORM):  # compiled on this machine, from which the nodes may differ
                raise error from None
            wheel.rename(folder / wheel.name)
