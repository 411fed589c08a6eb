"""What `orch setup` does: a stack in the environment that this Python belongs to.

Installed packages are kept, so a second call takes seconds. The packages of the stack's lock come
first, then torch, in its small CPU build if an index has it, then our bindings, built against it.
"""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator import screen
from orchestrator.errors import ExecuteError, PlanError
from orchestrator.load.clusters import local_facts
from orchestrator.operations import stacks
from orchestrator.operations.stacks import DISTRIBUTION
from orchestrator.paths import SHARE
from orchestrator.provisioning import bindings_wheel
from orchestrator.provisioning.lock import locked_packages, pip_options
from orchestrator.provisioning.pip import command
from orchestrator.provisioning.plan import Platform
from orchestrator.stacks.matrix import builds_bindings, index_for
from orchestrator.stacks.stack import BINDINGS, TORCH, Index, Stack, same_version

TOOLS = ("setuptools>=77", "numpy", "ninja")  # what building against torch wants
# An index that does not answer holds set-up up for 5 s, and where the name server is what does not
# answer, or the machine is busy, for this long at most. The other build has several GB.
ANSWER_SECONDS = 25
BEGAN = time.monotonic()
ASK_ONCE = ("--timeout=5", "--retries=0")
FETCH = ("--quiet", "--timeout=15", "--retries=2")
# Packages that come with torch's CUDA build alone.
OF_CUDA = ("nvidia-", "cuda-", "triton")


def set_up(stack: Stack, prefix: Path, wheels: Path | None = None) -> None:
    """`wheels`: a folder with a wheel of the bindings, which then are not built. Raises
    ExecuteError, PlanError."""
    need_own_stack(stack)
    need_python(stack)
    made = made_bindings(stack, wheels) if wheels else None
    if made is None:
        need_tools(stack)
    say(f"stack {stack.name}: {stack.summary}; into {prefix}")
    locked = install_locked(stack)
    install_torch(stack)
    say(describe_torch())
    if made:
        pip("install", "--no-deps", str(made))
    else:
        build_bindings(prefix)
    if not locked:
        install_requirements(stack)
    check(stack)


def install_locked(stack: Stack) -> bool:
    """Install the packages of the stack's lock, verified by their hashes.

    What orch itself runs on stays as it is: this process has imported some of it.

    Returns:
        Whether the stack has a lock.
    """
    this_machine = Platform(
        python="{}.{}".format(*sys.version_info), machine=platform.machine(), libc=platform.libc_ver()[1]
    )
    packages = locked_packages(stack, this_machine)
    needed_by_orch = required_packages(DISTRIBUTION)
    missing = tuple(package for package in packages if package.name not in needed_by_orch)
    if missing:
        say(f"installing {len(missing)} packages of the stack, verified by hash")
        with pip_options(missing) as (options, _):
            pip("install", *options)
    return bool(packages)


def required_packages(name: str, visited: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the installed packages that a distribution needs, directly or not, and itself."""
    if name in visited:
        return visited
    visited |= {name}
    try:
        requirements = [Requirement(line) for line in distribution(name).requires or ()]
    except PackageNotFoundError:
        return visited
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            visited = required_packages(canonicalize_name(requirement.name), visited)
    return visited


def install_requirements(stack: Stack) -> None:
    """Install what a stack without a lock requires beside torch and the bindings."""
    say("installing the rest of the stack")
    rest = {name: version for name, version in stack.requirements.items() if name != BINDINGS}
    alone = [f"{name}=={rest.pop(name)}" for name in stack.without_dependencies]
    pip("install", *(f"{name}=={version}" for name, version in rest.items()))
    if alone:
        pip("install", "--no-deps", *alone)


def need_own_stack(stack: Stack) -> None:
    """Raises PlanError for those of which others have built the bindings: they want indexes, and
    Pythons, of their own."""
    if not builds_bindings(stack):
        raise PlanError(
            f"`orch setup` installs the stacks that orch builds, and '{stack.name}' is none.",
            hint=f"`orch provision --stack {stack.name}` brings it to nodes; for this machine "
            f"`pip install` what `orch stacks requirements {stack.name}` prints.",
        )


def need_python(stack: Stack) -> None:
    """Before hundreds of MB are fetched of which the last do not fit. Raises PlanError."""
    here = platform.python_version()
    if not stack.runs_on_python(here):
        raise PlanError(
            f"Stack '{stack.name}' needs Python {stack.python}, and {sys.prefix} has {here}.",
            hint="Install orch with such a Python: `pipx install --python python3.12 ...`, "
            "`uv tool install --python 3.12 ...`; in a checkout delete .venv, then "
            "`make setup PYTHON=python3.12`.",
        )


def made_bindings(stack: Stack, wheels: Path) -> Path:
    """Raises PlanError for a folder without a wheel of the stack's bindings for this Python."""
    version = stack.requirements[BINDINGS]
    python = "cp{}{}".format(*sys.version_info)
    if not wheels.is_dir():
        raise PlanError(
            f"--wheels {wheels}: there is no such folder.",
            hint="Name the folder of a release, or leave --wheels out: they are built here then.",
        )
    found = sorted(wheels.glob(f"oneccl_bind_pt-{version}-*{python}-*.whl"))
    if not found:
        raise PlanError(
            f"{wheels} has no wheel of {BINDINGS} {version} for {python}.",
            hint="Leave --wheels out: then the bindings are built here.",
        )
    return found[-1].absolute()


def need_tools(stack: Stack) -> None:
    """What building asks of this machine. Raises PlanError with the packages that have it."""
    folder = SHARE / "bindings"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import needed; "
        "missing = needed.missing_build_tools(); print(needed.describe(missing) if missing else '')"
    )
    command = [sys.executable, "-I", "-B", "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if words := (done.stdout if done.returncode == 0 else done.stderr).strip():
        raise PlanError(
            f"The bindings of stack '{stack.name}' are built here: {words}",
            hint="Or take their wheel from a release: --wheels FOLDER. Then `orch setup` again.",
        )


def check(stack: Stack) -> None:
    """That what is there now is the stack, and can be loaded. Raises ExecuteError."""
    say("checking it")
    found = stacks.environment_of(sys.executable, shell=False)  # nosec
    ((_, _, mismatches),) = stacks.check([found], stack)
    for one in mismatches:
        say(f"{one.what}: {one.cure}")
    if mismatches:
        raise ExecuteError("What is installed is not the stack.", hint="The lines above say why.")
    module = stack.bindings.module if stack.bindings else TORCH
    command = [sys.executable, "-I", "-c", f"import torch, {module}; print(torch.__version__)"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise ExecuteError(
            f"torch and {module} cannot be loaded: {words}",
            hint="`orch stacks check` looks for what does not fit; `orch setup` again mends what is missing.",
        )
    say(f"done: stack {stack.name} is ready, torch {done.stdout.strip()} with {module}")


def install_torch(stack: Stack) -> None:
    """The CPU build where its index has it, else what pip finds by itself; none where torch is."""
    index = index_for(stack, TORCH)
    if not same_version(packages().get(TORCH), stack.torch):
        say("installing PyTorch")
        if not (index and install_small(index, stack.torch)):
            say("taking the build of PyTorch that pip finds by itself")
    pip("install", f"{TORCH}=={stack.torch}", *TOOLS)


def install_small(index: Index, version: str) -> bool:
    """Whether the CPU build could be had; what it needs comes from pip's own index, later."""
    wanted = f"{version}+cpu"
    if not offers(index, wanted):
        return False
    try:
        pip("install", "--no-deps", f"--index-url={index.url}", *FETCH, f"{TORCH}=={wanted}")
    except ExecuteError as error:
        say(f"{index.name} failed: {error.message}")
        return False
    return True


def offers(index: Index, version: str) -> bool:
    """Whether pip finds this version of torch there, within a few seconds."""
    asked = command("index", "versions", TORCH, f"--index-url={index.url}", *ASK_ONCE)
    began = time.monotonic()
    try:
        done = subprocess.run(asked, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
        found = version in done.stdout.replace(",", " ").split()
    except subprocess.TimeoutExpired:
        found = False
    if not found:
        seconds = time.monotonic() - began
        say(f"{index.name} ({index.url}) gave no {TORCH} {version} in {seconds:.0f} s")
    return found


def build_bindings(prefix: Path) -> None:
    """The wheel of bindings/, made anew where its sources or torch are others than last time."""
    folder, torch = prefix / "wheels", packages()[TORCH]
    if BINDINGS in packages() and bindings_wheel.find_wheel(folder, torch):
        return
    say("building the ccl bindings (a few minutes)")
    for old in folder.glob(bindings_wheel.WHEELS):
        old.unlink()
    into = ("--no-build-isolation", "--wheel-dir", str(folder))
    pip("wheel", "--no-deps", *into, str(SHARE / "bindings"))
    pip("install", "--no-deps", "--force-reinstall", *map(str, folder.glob(bindings_wheel.WHEELS)))
    bindings_wheel.record_build(folder, torch)


def packages() -> dict[str, str]:
    """As the probe sees them: torch is torch.__version__, with its build."""
    return dict(local_facts(sys.executable).packages)


def describe_torch() -> str:
    """Which build came, and what it takes on disk with the packages that it alone needs."""
    importlib.invalidate_caches()
    found = {canonicalize_name(one.name): one for one in distributions()}
    cuda = [one for name, one in found.items() if name.startswith(OF_CUDA)]
    size = sum(map(size_of, (found[canonicalize_name(TORCH)], *cuda))) / 1e9
    build = f"PyTorch is {packages()[TORCH]}: {size:.1f} GB on disk"
    return f"{build}, {len(cuda)} CUDA packages among it, unused here" if cuda else build


def size_of(package: Distribution) -> int:
    """Bytes, as the package's RECORD lists its files."""
    return sum(file.size or 0 for file in package.files or ())


def pip(*words: str) -> None:
    """pip tells itself what is wrong. It unpacks GBs: not into /tmp, which may be a small one in
    memory. Raises ExecuteError."""
    asked = command(words[0], "--quiet", *words[1:])
    with tempfile.TemporaryDirectory(prefix="pip-", dir=sys.prefix) as folder:
        path = f"{sys.prefix}/bin:{os.environ.get('PATH', os.defpath)}"  # ninja's
        environment = os.environ | {"TMPDIR": folder, "PATH": path}
        done = subprocess.run(asked, stdin=subprocess.DEVNULL, env=environment)
    if done.returncode != 0:
        raise ExecuteError(
            f"pip {words[0]} ended with exit code {done.returncode}.",
            hint="Its output is above; it asks the index that `pip config list` names. "
            "What is installed stays: the same command goes on.",
        )


def say(text: str) -> None:
    screen.say(f"[{time.monotonic() - BEGAN:6.1f}s] {text}", err=True)
