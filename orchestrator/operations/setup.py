"""What `make setup` does: the stack `current` in the environment that this Python belongs to.

What is there is left alone, so a second time costs seconds. torch comes first, its small CPU build
if that can be had; then our bindings, built against it; then the rest, which takes the torch that
is there.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from orchestrator import load, screen
from orchestrator.errors import ExecuteError, OrchError, PlanError
from orchestrator.files import PUBLIC, write_whole
from orchestrator.load.clusters import local_facts
from orchestrator.load.records import OWN_STACK
from orchestrator.paths import SHARE
from orchestrator.provisioning.pip import command
from orchestrator.provisioning.wheelhouse import sources_digest
from orchestrator.versions.matrix import index_of, own_bindings
from orchestrator.versions.stack import BINDINGS, TORCH, Index, Stack, same_version

TOOLS = ("setuptools>=77", "numpy", "ninja")  # what building against torch wants
# An index that does not answer holds set-up up for this long at most, also where the name server
# is what does not answer.
ANSWER_SECONDS = 8
ASK_ONCE = ("--timeout=5", "--retries=0")
FETCH = ("--quiet", "--timeout=15", "--retries=2")
# Packages that come with torch's CUDA build alone.
OF_CUDA = ("nvidia-", "cuda-", "triton")


def set_up(stack: Stack, prefix: Path) -> None:
    """Raises ExecuteError, PlanError."""
    need_python(stack)
    install_torch(stack)
    say(describe_torch())
    if own_bindings(stack):
        build_bindings(prefix)
    say("installing the rest of the stack")
    rest = {name: version for name, version in stack.requirements.items() if name != BINDINGS}
    alone = [f"{name}=={rest.pop(name)}" for name in stack.without_dependencies]
    pip("install", *(f"{name}=={version}" for name, version in rest.items()))
    if alone:
        pip("install", "--no-deps", *alone)


def need_python(stack: Stack) -> None:
    """Before hundreds of MB are fetched of which the last do not fit. Raises PlanError."""
    here = platform.python_version()
    if not stack.runs_on_python(here):
        raise PlanError(
            f"Stack '{stack.name}' needs Python {stack.python}, and {sys.prefix} has {here}.",
            hint=f"Delete {sys.prefix} and name such a Python: `make setup PYTHON=python3.12`.",
        )


def install_torch(stack: Stack) -> None:
    """The CPU build where its index has it, else what pip finds by itself; none where torch is."""
    index = index_of(stack, TORCH)
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
        done = subprocess.run(
            asked, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS
        )
        found = version in done.stdout.replace(",", " ").split()
    except subprocess.TimeoutExpired:
        found = False
    if not found:
        seconds = time.monotonic() - began
        say(f"{index.name} ({index.url}) gave no {TORCH} {version} in {seconds:.0f} s")
    return found


def build_bindings(prefix: Path) -> None:
    """The wheel of bindings/, made anew where its sources or torch are others than last time."""
    folder = prefix / "wheels"
    stamp, made_of = folder / "made-of.json", {"torch": packages()[TORCH], "of": sources_digest()}
    if BINDINGS in packages() and read(stamp) == made_of:
        return
    say("building the ccl bindings (a few minutes)")
    for old in folder.glob("oneccl_bind_pt-*.whl"):
        old.unlink()
    into = ("--no-build-isolation", "--wheel-dir", str(folder))
    pip("wheel", "--no-deps", *into, str(SHARE / "bindings"))
    pip("install", "--no-deps", "--force-reinstall", *map(str, folder.glob("oneccl_bind_pt-*.whl")))
    write_whole(stamp, json.dumps(made_of) + "\n", mode=PUBLIC)


def read(stamp: Path) -> object:
    try:
        return json.loads(stamp.read_text())
    except (OSError, ValueError):
        return None


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
            hint="Its output is above. What is installed stays: the same command goes on.",
        )


def say(text: str) -> None:
    screen.say(text)


def main() -> int:
    try:
        set_up(load.stack(OWN_STACK), Path(sys.prefix))
    except OrchError as error:
        screen.say(f"error: {error.message}\nhint: {error.hint}", err=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
