from __future__ import annotations

import pytest

from orchestrator import load
from orchestrator.errors import PlanError, RequestError
from orchestrator.stacks.matrix import (
    Platform,
    VersionRequest,
    alternatives,
    bindings_fit_torch,
    find_stack,
    nearest_to_torch,
    status,
)
from orchestrator.stacks.stack import BINDINGS, TORCH

STACKS = load.all_stacks()
LINUX = Platform(python="3.11.2", system="Linux", machine="x86_64")


def version_request(text: str) -> VersionRequest:
    """Return the request for `torch 2.7, ipex 2.7`."""
    return VersionRequest(**dict(item.split() for item in text.split(", ")))


@pytest.mark.parametrize(
    ("versions", "name"),
    [
        ("torch 2.7", "torch-2.7"),
        ("torch 2.7, ipex 2.7", "intel-2.7"),
        ("torch 2.7.0, ipex 2.7.0, bindings 2.7.0+cpu", "intel-2.7"),
        ("torch 2.13", "current"),
        ("torch 2.13.0+cpu", "current"),
        ("ipex 2.8.0+cpu", "intel-2.8"),
        ("torch 1.12.1, bindings 1.12.100", "intel-1.12.1"),
        ("torch 1.10", "torch-ccl-1.10"),
    ],
)
def test_find_stack_returns_the_stack_with_all_versions(versions: str, name: str) -> None:
    assert find_stack(STACKS, version_request(versions)).name == name


@pytest.mark.parametrize(
    ("versions", "nearest"),
    [
        ("torch 2.6, ipex 2.7", ["intel-2.6", "intel-2.7"]),
        ("torch 2.13, ipex 2.8", ["current", "intel-2.8"]),
        ("torch 2.7.1, ipex 2.7.0", ["torch-2.7", "intel-2.7"]),
        ("torch 1.12.1, bindings 1.12.10", ["intel-1.12.1", "intel-1.12"]),
        ("torch 1.12.1, bindings 1.12.0", ["intel-1.12.1", "intel-1.12"]),
        ("torch 2.16", ["torch-2.15"]),
        ("torch 1.9, bindings 1.9", ["torch-ccl-1.10"]),
        ("bindings 2.7.0+xpu", ["intel-2.7"]),
    ],
)
def test_find_stack_names_the_nearest_stacks_when_none_matches(versions: str, nearest: list[str]) -> None:
    names = [stack.name for stack in STACKS]
    with pytest.raises(PlanError, match="Nothing was installed") as error:
        find_stack(STACKS, version_request(versions))
    assert [part for part in error.value.hint.split("'") if part in names] == nearest


@pytest.mark.parametrize("versions", ["torch 2.7.0+cu128", "ipex 2.8.0+xpu"])
def test_find_stack_rejects_gpu_builds(versions: str) -> None:
    with pytest.raises(PlanError):
        find_stack(STACKS, version_request(versions))


def test_find_stack_explains_gpu_wheels_with_the_name_of_cpu_wheels() -> None:
    with pytest.raises(PlanError, match=r"2\.0\.100 is a wheel for Intel GPUs"):
        find_stack(STACKS, VersionRequest(torch="2.0.1", bindings="2.0.100"))


@pytest.mark.parametrize(
    "invalid",
    [
        pytest.param(VersionRequest(), id="nothing"),
        pytest.param(VersionRequest(torch="newest"), id="a word"),
        pytest.param(VersionRequest(ipex=""), id="empty"),
    ],
)
def test_find_stack_rejects_invalid_versions(invalid: VersionRequest) -> None:
    with pytest.raises(RequestError):
        find_stack(STACKS, invalid)


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
    [(None, "current"), ("2.12.0+cpu", "torch-2.12"), ("2.8.1", "intel-2.8"), ("1.9", "torch-ccl-1.10")],
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


def test_alternatives_to_a_missing_package_are_named() -> None:
    result = alternatives(load.stack("intel-2.7"), BINDINGS, STACKS)
    assert "--backend gloo" in result[0]
    assert "intel-2.8" in result[1]
    assert "'current' builds" in result[2]
    assert "gloo" not in alternatives(load.stack("intel-2.7"), TORCH, STACKS)[0]
