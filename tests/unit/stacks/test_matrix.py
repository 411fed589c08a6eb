from __future__ import annotations

import pytest

from orchestrator import load
from orchestrator.stacks.matrix import Platform, bindings_fit_torch, nearest_to_torch, status

STACKS = load.all_stacks()
LINUX = Platform(python="3.11.2", system="Linux", machine="x86_64")


@pytest.mark.parametrize(
    ("bindings", "torch", "fit"),
    [
        ("1.12.0+cpu", "1.12.0+cpu", True),
        ("1.12.0+cpu", "1.12.1+cpu", False),
        ("1.12.100+cpu", "1.12.1", True),
        ("2.7.0+cpu", "2.8.0+cu128", False),
        ("2.4.5", "2.4.1", True),
    ],
)
def test_bindings_fit_the_torch_of_their_stack(bindings: str, torch: str, fit: bool) -> None:
    assert bindings_fit_torch(STACKS, bindings, torch) is fit


@pytest.mark.parametrize(
    ("torch", "name"),
    [
        (None, "current"),
        ("2.12.0+cpu", "torch-2.12"),
        ("2.7", "torch-2.7"),
        ("2.7.0", "intel-2.7"),
        ("2.16", "torch-2.15"),
        ("2.8.1", "intel-2.8"),
        ("1.9", "torch-ccl-1.10"),
    ],
)
def test_nearest_stack_to_a_torch_is_found(torch: str | None, name: str) -> None:
    assert nearest_to_torch(STACKS, torch).name == name


@pytest.mark.parametrize(
    ("name", "platform", "result"),
    [
        ("current", LINUX, ("works here",)),
        ("intel-2.8", LINUX, ("works here", "end of life since 2026-03-30")),
        ("intel-2.7", LINUX, ("needs Intel's index", "end of life since 2025-12-31")),
        ("torch-ccl-1.10", LINUX, ("needs Python >=3.9,<3.10", "needs Intel's index", "end of life since 2025-12-31")),
        ("current", Platform(python="3.11.2", system="Darwin", machine="arm64"), ("needs Linux on x86-64",)),
    ],
    ids=["newest", "without support", "own index", "another Python", "macOS"],
)
def test_status_names_what_the_machine_lacks(name: str, platform: Platform, result: tuple[str, ...]) -> None:
    assert status(load.stack(name), platform) == result
