"""Versions that were asked for -> the stack that has them, or the nearest ones."""

from __future__ import annotations

import pytest

from orchestrator import load
from orchestrator.errors import PlanError, RequestError
from orchestrator.stacks.matrix import Here, Mix, alternatives, fits_torch, resolve_mix, stack_like, state
from orchestrator.stacks.stack import BINDINGS, TORCH

STACKS = load.all_stacks()
LINUX = Here(python="3.11.2", system="Linux", machine="x86_64")


@pytest.mark.parametrize(
    ("mix", "name"),
    [
        (Mix(torch="2.7"), "torch-2.7"),
        (Mix(torch="2.9"), "torch-2.9"),
        (Mix(torch="2.7", ipex="2.7"), "intel-2.7"),
        (Mix(torch="2.7.0", ipex="2.7.0", bindings="2.7.0+cpu"), "intel-2.7"),
        (Mix(ipex="2.8"), "intel-2.8"),
        (Mix(torch="2.13"), "current"),
        (Mix(torch="2.13.0+cpu"), "current"),
        (Mix(ipex="2.8.0+cpu"), "intel-2.8"),
        (Mix(torch="1.12.1", bindings="1.12.100"), "intel-1.12.1"),
        (Mix(torch="2.0.1", bindings="2.0.0"), "intel-2.0.1"),
        (Mix(torch="1.10"), "torch-ccl-1.10"),
    ],
)
def test_a_set_that_fits(mix: Mix, name: str) -> None:
    assert resolve_mix(STACKS, mix).name == name


@pytest.mark.parametrize(
    ("mix", "nearest"),
    [
        (Mix(torch="2.6", ipex="2.7"), ["intel-2.6", "intel-2.7"]),
        (Mix(torch="2.13", ipex="2.8"), ["current", "intel-2.8"]),
        (Mix(torch="2.7.1", ipex="2.7.0"), ["torch-2.7", "intel-2.7"]),
        (Mix(torch="1.12.1", bindings="1.12.10"), ["intel-1.12.1", "intel-1.12"]),
        (Mix(torch="1.12.1", bindings="1.12.0"), ["intel-1.12.1", "intel-1.12"]),
        (Mix(torch="2.16"), ["torch-2.15"]),
        (Mix(torch="1.9", bindings="1.9"), ["torch-ccl-1.10"]),
    ],
)
def test_a_mix_is_refused_with_the_nearest_sets(mix: Mix, nearest: list[str]) -> None:
    with pytest.raises(PlanError, match="Nothing was installed") as caught:
        resolve_mix(STACKS, mix)
    assert [part for part in caught.value.hint.split("'") if part in names()] == nearest


def names() -> list[str]:
    return [stack.name for stack in STACKS]


def test_a_gpu_wheel_is_named() -> None:
    with pytest.raises(PlanError, match=r"2\.0\.100 is a wheel for Intel GPUs"):
        resolve_mix(STACKS, Mix(torch="2.0.1", bindings="2.0.100"))


@pytest.mark.parametrize("mix", [Mix(bindings="2.7.0+xpu"), Mix(torch="2.7.0+cu128"), Mix(ipex="2.8.0+xpu")])
def test_builds_for_gpus_are_not_cpu(mix: Mix) -> None:
    with pytest.raises(PlanError):
        resolve_mix(STACKS, mix)


@pytest.mark.parametrize("mix", [Mix(), Mix(torch="newest"), Mix(ipex="")])
def test_what_is_no_version(mix: Mix) -> None:
    with pytest.raises(RequestError):
        resolve_mix(STACKS, mix)


@pytest.mark.parametrize(
    ("bindings", "torch", "fits"),
    [
        ("1.12.0+cpu", "1.12.0+cpu", True),
        ("1.12.0+cpu", "1.12.1+cpu", False),
        ("1.12.100+cpu", "1.12.1", True),
        ("2.0.0+cpu", "2.0.1", True),
        ("2.7.0+cpu", "2.8.0+cu128", False),
        ("2.4.5", "2.4.1", True),
    ],
)
def test_bindings_of_a_torch(bindings: str, torch: str, fits: bool) -> None:
    assert fits_torch(STACKS, bindings, torch) is fits


@pytest.mark.parametrize(
    ("torch", "name"),
    [(None, "current"), ("2.12.0+cpu", "torch-2.12"), ("2.8.1", "intel-2.8"), ("1.9", "torch-ccl-1.10")],
)
def test_the_stack_to_measure_by(torch: str | None, name: str) -> None:
    assert stack_like(STACKS, torch).name == name


def test_states() -> None:
    by_name = {stack.name: stack for stack in STACKS}
    ended = "end of life since 2025-12-31"
    assert state(by_name["current"], LINUX) == ("works here",)
    assert state(by_name["intel-2.8"], LINUX) == ("works here", "end of life since 2026-03-30")
    assert state(by_name["intel-2.7"], LINUX) == ("needs Intel's index", ended)
    assert state(by_name["torch-ccl-1.10"], LINUX) == ("needs Python >=3.9,<3.10", "needs Intel's index", ended)
    mac = Here(python="3.11.2", system="Darwin", machine="arm64")
    assert state(by_name["current"], mac) == ("needs Linux on x86-64",)


def test_what_else_serves() -> None:
    words = alternatives(load.stack("intel-2.7"), BINDINGS, STACKS)
    assert words[0] == "--backend gloo does without these bindings"
    assert "intel-2.8" in words[1]
    assert "'current' builds its own bindings" in words[2]
    assert "gloo" not in alternatives(load.stack("intel-2.7"), TORCH, STACKS)[0]
