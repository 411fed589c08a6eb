"""Install a stack into the environment that runs orch.

Installed packages are kept, so that a second call takes seconds. The packages of the stack's lock
come first, then torch (the small CPU build if an index has it), then the bindings, which are built
against that torch.
"""

from __future__ import annotations

import os
import platform
import runpy
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from orchestrator.errors import ExecuteError, PlanError
from orchestrator.files import SHARE
from orchestrator.load.clusters import local_facts
from orchestrator.load.packages import lock_packages
from orchestrator.model.packages import Requirements
from orchestrator.model.printable import counted
from orchestrator.operations import stacks
from orchestrator.provisioning import bindings_wheel
from orchestrator.provisioning.pip import command, local_platform, locked_packages, pip_options
from orchestrator.stacks.compatibility import builds_bindings, index_for
from orchestrator.stacks.stack import BINDINGS, TORCH, Index, Stack, same_version
from orchestrator.targets.interface import Notify

TOOLS = ("setuptools>=77", "numpy")  # needed to build against torch
# pip gives up on an index that does not respond after 5 s. A name server that does not respond, or
# a busy machine, takes longer; beyond this limit the CUDA build of several GB is installed.
QUERY_SECONDS = 25
QUERY_ONCE = ("--timeout=5", "--retries=0")
FETCH = ("--quiet", "--timeout=15", "--retries=2")


def set_up(stack: Stack, wheels: Path | None, requirements: Requirements | None, notify: Notify) -> None:
    """Install a stack and check that it can be loaded.

    Args:
        stack: the stack.
        wheels: a folder with a wheel of the bindings; None to build it.
        requirements: the user's packages.
        notify: receives what is done, as lines.

    Raises:
        RequestError: if the user's packages do not fit the stack.
        PlanError: if the stack cannot be installed on this machine.
        ExecuteError: if the installation fails.
    """
    check_stack(stack)
    wheel = find_bindings(stack, wheels) if wheels else None
    if wheel is None:
        check_build_tools(stack)
    notify(f"installing stack {stack.name} ({stack.summary}) into {sys.prefix}")
    install_locked(stack, notify)
    install_torch(stack, notify)
    if wheel:
        pip("install", "--no-deps", str(wheel))
    else:
        build_bindings(notify)
    if requirements:
        install_packages(requirements, stack, notify)
    check(stack, notify)


def install_locked(stack: Stack, notify: Notify) -> None:
    """Install the packages of the stack's lock, verified by their hashes.

    Packages that this process has imported stay as they are.
    """
    locked = locked_packages(stack, local_platform())
    missing = tuple(package for package in locked if not is_imported(package.name))
    if missing:
        notify(f"installing {counted(len(missing), 'package')} of the stack, verified by hash")
        with pip_options(missing) as (options, _):
            pip("install", *options)


def is_imported(package: str) -> bool:
    """Return whether this process has imported a module of a package."""
    try:
        files = distribution(package).files or ()
    except PackageNotFoundError:
        return False
    modules = {file.parts[0].removesuffix(".py") for file in files} - {"_distutils_hack"}  # which Python always imports
    return not modules.isdisjoint(sys.modules)


def install_packages(requirements: Requirements, stack: Stack, notify: Notify) -> None:
    """Install the user's packages, and keep all that are installed.

    Raises:
        RequestError: if they do not fit the installed packages.
        ExecuteError: if they cannot be installed.
    """
    lock = lock_packages(requirements, packages(), local_platform(), stack.name)
    if not lock:
        return
    notify(f"installing the packages of {requirements.source}")
    with tempfile.TemporaryDirectory(prefix="orch-setup-") as folder:
        listing = Path(folder, "requirements.txt")
        indexes = [line for line in requirements.lines if line.startswith("-")]
        listing.write_text("\n".join([*indexes, lock]))
        pip("install", "--no-deps", "--require-hashes", "--requirement", str(listing))


def check_stack(stack: Stack) -> None:
    """Raise PlanError if orch does not build the stack's bindings, or the stack does not support this Python."""
    if not builds_bindings(stack):
        raise PlanError.about("setup-of-stack", stack=stack)
    python = platform.python_version()
    if not stack.runs_on_python(python):
        raise PlanError.about("python-of-setup", stack=stack, prefix=sys.prefix, python=python)


def find_bindings(stack: Stack, wheels: Path) -> Path:
    """Return the wheel of the stack's bindings for this Python in a folder.

    Raises:
        PlanError: if there is none.
    """
    version = stack.requirements[BINDINGS]
    python = "cp{}{}".format(*sys.version_info)
    matches = sorted(wheels.glob(f"oneccl_bind_pt-{version}-*{python}-*.whl"))
    if not matches:
        raise PlanError.about("wheels-for-setup", wheels=wheels, bindings=BINDINGS, version=version, python=python)
    return matches[-1].absolute()


def check_build_tools(stack: Stack) -> None:
    """Raise PlanError with the missing system packages if the bindings cannot be built."""
    needed = runpy.run_path(str(SHARE / "bindings" / "needed.py"))
    if missing := needed["missing_build_tools"]():
        raise PlanError.about("build-tools", stack=stack, missing=needed["describe"](missing))


def check(stack: Stack, notify: Notify) -> None:
    """Raise ExecuteError unless the stack is installed and can be loaded."""
    notify("checking the stack")
    environment = stacks.environment_of(sys.executable, shell=False)
    ((_, _, mismatches),) = stacks.check([environment], stack)
    for mismatch in mismatches:
        notify(f"{mismatch.message}: {mismatch.hint}")
    if mismatches:
        raise ExecuteError.about("installed-packages", stack=stack)
    module = stack.bindings.module if stack.bindings else TORCH
    command = [sys.executable, "-I", "-c", f"import torch, {module}; print(torch.__version__)"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise ExecuteError.about("loading-of-torch", module=module, reason=reason)
    notify(f"stack {stack.name} is ready: torch {done.stdout.strip()} with {module}")


def install_torch(stack: Stack, notify: Notify) -> None:
    """Install torch if it is missing: the CPU build if its index has it, otherwise pip's default."""
    index, cpu_version = index_for(stack, TORCH), f"{stack.torch}+cpu"
    if not same_version(packages().get(TORCH), stack.torch):
        notify("installing PyTorch")
        if index and has_torch(index, cpu_version, notify):
            try:
                pip("install", "--no-deps", f"--index-url={index.url}", *FETCH, f"{TORCH}=={cpu_version}")
            except ExecuteError as error:
                notify(f"{index.name} failed, the default build is installed instead: {error.message}")
    pip("install", f"{TORCH}=={stack.torch}", *TOOLS)


def has_torch(index: Index, version: str, notify: Notify) -> bool:
    """Return whether an index has this version of torch, without waiting long for a response."""
    query = command("index", "versions", TORCH, f"--index-url={index.url}", *QUERY_ONCE)
    began, is_available = time.monotonic(), False
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(query, capture_output=True, text=True, errors="replace", timeout=QUERY_SECONDS)
        is_available = version in done.stdout.replace(",", " ").split()
    if not is_available:
        seconds = time.monotonic() - began
        notify(f"{index.name} ({index.url}) did not offer {TORCH} {version} within {seconds:.0f} s")
    return is_available


def build_bindings(notify: Notify) -> None:
    """Build and install the bindings, unless their sources and torch are unchanged."""
    folder, torch = Path(sys.prefix, "wheels"), packages()[TORCH]
    if BINDINGS in packages() and bindings_wheel.find_wheel(folder, torch):
        return
    notify("building the ccl bindings (a few minutes)")
    for old in folder.glob(bindings_wheel.WHEELS):
        old.unlink()
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(SHARE / "bindings"))
    pip("install", "--no-deps", "--force-reinstall", *map(str, folder.glob(bindings_wheel.WHEELS)))
    bindings_wheel.record_build(folder, torch)


def packages() -> dict[str, str]:
    """Return the installed packages; torch's version includes its build, such as +cpu."""
    return dict(local_facts(sys.executable).packages)


def pip(*arguments: str) -> None:
    """Run pip with its output on the terminal.

    Its temporary files go below the prefix, because /tmp may be small and in memory.

    Raises:
        ExecuteError: if pip fails.
    """
    pip_command = command(arguments[0], "--quiet", *arguments[1:])
    with tempfile.TemporaryDirectory(prefix="pip-", dir=sys.prefix) as folder:
        done = subprocess.run(pip_command, stdin=subprocess.DEVNULL, env=os.environ | {"TMPDIR": folder})
    if done.returncode != 0:
        raise ExecuteError.about("pip-command", command=arguments[0], code=done.returncode)
