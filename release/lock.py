"""Write the locks of the stacks that orch builds: `make locks`.

Packages that only a CUDA build of torch needs are left out. A lock with the content of another
one names it by `-r`: symbolic links do not survive in wheels and in some checkouts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.specifiers import SpecifierSet

from orchestrator import load
from orchestrator.load.packages import parse_lock
from orchestrator.operations.setup import TOOLS
from orchestrator.provisioning.pip import LOCKS, LockedPackage
from orchestrator.provisioning.wheelhouse import UV
from orchestrator.stacks.compatibility import builds_bindings
from orchestrator.stacks.stack import BINDINGS, MPI_WHEELS, TORCH, Stack

CUDA_PREFIXES = ("nvidia-", "cuda-", "triton")
HEADER = """\
# Written by `make locks`: exact versions and SHA-256 hashes of a stack's packages.
# Without torch: its CPU build is on PyTorch's own index, whose files `make locks` does not read.
"""


def compile_lock(lines: list[str], python: str, *options: str) -> str:
    """Return the output of `uv pip compile` for these requirements."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "requirements.in")
        source.write_text("".join(f"{line}\n" for line in lines))
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"),
            *("--generate-hashes", "--no-annotate", "--no-header"),
            *(f"--python-version={python}", *options, str(source)),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return "".join(f"{line}\n" for line in done.stdout.splitlines() if not line.startswith("#"))


def write_lock(stack: Stack) -> Path:
    """Write the lock of one stack."""
    versions = {**stack.requirements, **MPI_WHEELS}
    pins = [f"{name}=={version}" for name, version in versions.items() if name != BINDINGS]
    without_dependencies = [pin for pin in pins if pin.partition("==")[0] in stack.without_dependencies]
    python = next(bound.version for bound in SpecifierSet(stack.python) if bound.operator == ">=")
    text = compile_lock([*(pin for pin in pins if pin not in without_dependencies), *TOOLS, UV], python)
    if without_dependencies:
        text += compile_lock(without_dependencies, python, "--no-deps")
    path = LOCKS / f"{stack.name}.txt"
    path.parent.mkdir(exist_ok=True)
    locked = [LockedPackage(requirement=requirement, hashes=tuple(hashes)) for requirement, hashes in parse_lock(text)]
    packages = [p for p in locked if p.name != TORCH and not p.name.startswith(CUDA_PREFIXES)]
    packages.sort(key=lambda package: (package.name, package.pin))
    path.write_text(HEADER + "".join(map(render, packages)))
    return path


def refer_to_equal_locks(paths: list[Path]) -> None:
    """Replace each lock that has the content of an earlier one with a reference to that."""
    first_with: dict[str, Path] = {}
    for path in paths:
        first = first_with.setdefault(path.read_text(), path)
        if first != path:
            path.write_text(f"-r {first.name}\n")


def render(package: LockedPackage) -> str:
    """Return the lines of one package, one hash per line."""
    lines = [str(package.requirement), *(f"    --hash={h}" for h in package.hashes)]
    return " \\\n".join(lines) + "\n"


if __name__ == "__main__":
    stacks = [stack for stack in load.all_stacks() if builds_bindings(stack)]
    paths = [write_lock(stack) for stack in stacks]
    refer_to_equal_locks(paths)
    print(*paths, sep="\n")
