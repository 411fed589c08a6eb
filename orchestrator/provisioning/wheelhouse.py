"""All wheels of a stack for one platform: resolved once by pip, hashed, kept, used again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from orch_node.standalone.facts import torch_version
from packaging.utils import canonicalize_name

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.files import sha256, write_whole
from orchestrator.paths import SHARE
from orchestrator.provisioning import own_bindings
from orchestrator.provisioning.lock import locked_packages, pip_options
from orchestrator.provisioning.own_bindings import sources_digest
from orchestrator.provisioning.pip import command
from orchestrator.provisioning.plan import Platform
from orchestrator.stacks.stack import BINDINGS, TORCH, Stack, same_version
from orchestrator.state import cache_home, private_folder

UV = "uv==0.13.8"
FORMAT = 3  # part of a wheelhouse's name: another format is another wheelhouse
LOCK = "lock.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A file of the wheelhouse; `name` normalized as PEP 503 says."""

    name: str
    version: str
    file: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheelhouse:
    folder: Path
    wheels: tuple[Wheel, ...]

    @property
    def uv(self) -> Wheel:
        return next(wheel for wheel in self.wheels if wheel.name == "uv")

    @property
    def lock(self) -> tuple[Wheel, ...]:
        """What a node's environment holds: all but the installer."""
        return tuple(wheel for wheel in self.wheels if wheel.name != "uv")

    def variables(self, own: frozenset[str]) -> dict[str, object]:
        """`own`: packages whose wheels no index has."""
        return {
            "own": sorted(own & {wheel.name for wheel in self.lock}),
            "folder": str(self.folder),
            "lock": [asdict(wheel) for wheel in self.lock],
            "uv": asdict(self.uv),
        }


def prepare(stack: Stack, platform: Platform, find_links: tuple[str, ...]) -> Wheelhouse:
    """The wheelhouse, made if it is not there yet. Raises ExecuteError with pip's own words."""
    folder = cache() / f"{stack.name}-{platform.key}-{digest_of(stack, platform, find_links)}"
    with alone(folder.name):
        return read(folder) or make(folder, stack, platform, find_links)


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Nobody else of this cache makes `name` at the same time; who comes later finds it made."""
    private_folder(cache())
    with (cache() / f".{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(folder: Path, stack: Stack, platform: Platform, find_links: tuple[str, ...]) -> Wheelhouse:
    # The same folder at each try: pip does not fetch again what an interrupted one has brought.
    folder.mkdir(exist_ok=True, mode=0o700)
    for wheel in folder.glob("*.new"):
        wheel.unlink()
    fetch(stack, platform, folder, own_wheels(stack, find_links))
    wheels = [describe(path) for path in sorted(folder.glob("*.whl"))]
    write_whole(folder / LOCK, json.dumps([asdict(wheel) for wheel in wheels], indent=1) + "\n")
    return Wheelhouse(folder=folder, wheels=tuple(wheels))


def package_of(wheel: Path) -> str:
    return canonicalize_name(wheel.name.partition("-")[0])


def is_ready(stack: Stack, platform: Platform, find_links: tuple[str, ...]) -> bool:
    folder = cache() / f"{stack.name}-{platform.key}-{digest_of(stack, platform, find_links)}"
    return (folder / LOCK).exists()


def ahead(stack: Stack, platform: Platform, find_links: tuple[str, ...]) -> Iterator[str]:
    """What takes long when it is prepared, to be told before."""
    if not is_ready(stack, platform, find_links):
        if needs_build(stack, find_links):
            yield "wheelhouse: the ccl bindings are built first (minutes, once)"
        yield f"wheelhouse: fetching the wheels of {stack.name} for {platform.key} (once)"


def cache() -> Path:
    return cache_home() / "wheelhouses"


def digest_of(stack: Stack, platform: Platform, find_links: tuple[str, ...]) -> str:
    """Differs whenever pip could be asked for something else."""
    own = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for folder in find_links
        for path in sorted(Path(folder).glob("*.whl"))
    ]
    source = sources_digest() if needs_build(stack, find_links) else ""
    asked = [
        FORMAT,
        UV,
        sorted(stack.requirements.items()),
        sorted(stack.without_dependencies),
        own,
        source,
        [package.line for package in locked_packages(stack, platform)],
    ]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]


def read(folder: Path) -> Wheelhouse | None:
    """A complete wheelhouse, or None. What was damaged is found by the nodes, by its hash."""
    try:
        wheels = tuple(Wheel(**record) for record in json.loads((folder / LOCK).read_text()))
        whole = all((folder / wheel.file).stat().st_size == wheel.size for wheel in wheels)
    except (OSError, ValueError, TypeError):
        return None
    return Wheelhouse(folder=folder, wheels=wheels) if whole else None


def fetch(stack: Stack, platform: Platform, folder: Path, own: tuple[str, ...]) -> None:
    """Download the wheels of a stack: those of its lock by their hashes, then all others."""
    packages = locked_packages(stack, platform)
    locked = {package.name for package in packages}
    requirements = {
        name: f"{name}=={version}"
        for name, version in sorted(stack.requirements.items())
        if canonicalize_name(name) not in locked
    }
    alone = [requirements[name] for name in stack.without_dependencies if name in requirements]
    rest = [line for line in requirements.values() if line not in alone]
    if "uv" not in locked:
        rest.append(UV)
    options = platform_options(platform)
    links = [option for found in own for option in ("--find-links", found)]
    with pip_options(packages) as (hashed, constraints):
        if packages:
            pip(folder, [*options, *hashed])
            links += ["--find-links", str(folder)]
        pip(folder, [*links, *places(stack), *options, *constraints, *rest])
        if alone:
            pip(folder, [*links, *places(stack), *options, "--no-deps", *alone])


def places(stack: Stack) -> list[str]:
    """pip's options for the stack's indexes, where one has what no other has."""
    indexes = [option for index in stack.indexes for option in (f"--{index.option}", index.url)]
    return indexes if any(index.only_there for index in stack.indexes) else []


def torch_is_here(stack: Stack) -> bool:
    try:
        return same_version(version(TORCH), stack.torch)
    except PackageNotFoundError:
        return False


def platform_options(platform: Platform) -> list[str]:
    """What pip would choose on the nodes, also where this machine has another Python."""
    abi = f"cp{platform.python.replace('.', '')}"
    options = ["--only-binary", ":all:", "--implementation", "cp"]
    options += ["--python-version", platform.python]
    options += ["--abi", abi, "--abi", "abi3", "--abi", "none"]
    return options + [word for tag in platform_tags(platform) for word in ("--platform", tag)]


def platform_tags(platform: Platform) -> Iterator[str]:
    """PEP 600: a wheel for an older glibc runs on a newer one."""
    _, _, minor = platform.libc.partition(".")
    for older in range(int(minor), 4, -1):
        yield f"manylinux_2_{older}_{platform.machine}"
        legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}.get(older)
        if legacy:
            yield f"{legacy}_{platform.machine}"
    yield f"linux_{platform.machine}"


def pip(folder: Path, arguments: list[str]) -> None:
    run(command("download", "--quiet", "--dest", str(folder), *arguments))


def run(argv: list[str], variables: Mapping[str, str] = MappingProxyType({})) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ | variables)
    if done.returncode == 0:
        return
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    words = " ".join(errors or done.stderr.strip().splitlines()[-3:])
    raise ExecuteError(
        f"pip cannot get the wheels of the stack: {words}",
        hint="pip took its own configuration (`pip config list`): name an index there that has "
        "them, or give a folder of wheels: --find-links.",
    )


def describe(path: Path) -> Wheel:
    _, version, *_ = path.name.split("-")
    return Wheel(name=package_of(path), version=version, file=path.name, sha256=sha256(path), size=path.stat().st_size)


# Our own bindings: built once from the sources beside us, when the stack names them.


def needs_build(stack: Stack, find_links: tuple[str, ...]) -> bool:
    ours = stack.bindings is not None and stack.bindings.built_by == "orch"
    given = any(path for folder in find_links for path in Path(folder).glob("oneccl_bind_pt-*.whl"))
    return ours and BINDINGS in stack.requirements and not given


def own_packages(stack: Stack, find_links: tuple[str, ...]) -> frozenset[str]:
    """Names of the packages whose wheels are here and at no index."""
    given = {package_of(path) for folder in find_links for path in Path(folder).glob("*.whl")}
    built = {canonicalize_name(BINDINGS)} if needs_build(stack, find_links) else set()
    return frozenset(given | built)


def own_wheels(stack: Stack, find_links: tuple[str, ...]) -> tuple[str, ...]:
    """Folders of wheels that no index has; the bindings are built if they must be."""
    if not needs_build(stack, find_links):
        return find_links
    return (*find_links, str(build_bindings(stack)))


def build_bindings(stack: Stack) -> Path:
    source = SHARE / "bindings"
    if not (source / "pyproject.toml").exists():
        raise RequestError(
            f"The stack needs our bindings ({BINDINGS}), whose sources are not in {source}.",
            hint="Build them in a checkout (`pip wheel --no-deps ./bindings`), and give the "
            "folder of the wheel: --find-links.",
        )
    target = cache() / f"bindings-{stack.torch}-{sources_digest()}"
    with alone("bindings"):  # all builds share the folder `build` beside the sources
        if not any(target.glob("*.whl")):
            build(source, target, stack)
    return target


def build(source: Path, target: Path, stack: Stack) -> None:
    """For the stack's torch: the one of this environment, for which `orch setup` may have built
    them already, or one that is fetched for the build."""
    staging = target.with_name(f"{target.name}.{os.getpid()}")
    asked = ["--quiet", "--no-deps", "--wheel-dir", str(staging), str(source)]
    if torch_is_here(stack):
        prefix = Path(sys.prefix)
        torch = torch_version(prefix) or version(TORCH)  # as `orch setup` notes it
        if wheel := own_bindings.made(prefix / "wheels", torch):
            staging.mkdir()
            shutil.copy(wheel, staging)
        else:
            run(command("wheel", *asked))
    else:
        with tempfile.TemporaryDirectory(prefix="torch-", dir=cache()) as folder:
            wanted = (f"{TORCH}=={stack.torch}", "setuptools>=77", "numpy")
            run(command("install", "--quiet", "--target", folder, *places(stack), *wanted))
            path = {"PYTHONPATH": folder}
            run(command("wheel", "--no-build-isolation", *asked), path)
    shutil.rmtree(target, ignore_errors=True)
    staging.replace(target)
