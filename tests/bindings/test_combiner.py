"""Reductions of bfloat16: the same bits whatever vector instructions compute them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.bindings.conftest import PROGRAMS

SOURCES = Path(__file__).parents[2] / "bindings/csrc"
CAPABILITIES = {None: ("none", "avx2", "avx512"), "avx2": ("none", "avx2"), "default": ("none",)}


@pytest.fixture(scope="module")
def combiner(tmp_path_factory) -> Path:
    program = tmp_path_factory.mktemp("combiner") / "combiner"
    compiler = ["g++", "-std=c++20", "-Wall", "-Werror", "-O2", "-I", SOURCES, "-o", program]
    subprocess.run([*compiler, PROGRAMS / "combiner.cpp", SOURCES / "combiner.cpp"], check=True)
    return program


@pytest.mark.parametrize("capability", CAPABILITIES, ids=["processor", "avx2", "default"])
def test_bfloat16_has_the_scalar_bits(combiner, capability):
    env = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    if capability:
        env["ATEN_CPU_CAPABILITY"] = capability
    done = subprocess.run([combiner], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.strip() in CAPABILITIES[capability]


@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="a processor with AVX2")
def test_a_capable_processor_can_be_made_to_use_avx2(combiner):
    env = os.environ | {"ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run([combiner], env=env, capture_output=True, text=True)
    assert done.stdout == "avx2\n"


@pytest.mark.parametrize(
    ("by", "env"),
    [
        ("mpi", {"ORCH_CCL_SHARED_MEMORY": "1"}),
        ("mpi", {"ORCH_CCL_SHARED_MEMORY": "0", "CCL_ALLREDUCE": "direct"}),
        ("mpi", {"ORCH_CCL_SHARED_MEMORY": "0", "CCL_ALLREDUCE": "ring"}),
        ("bare", {"ORCH_CCL_SHARED_MEMORY": "0"}),
    ],
    ids=["shared-memory", "mpi", "ring", "ofi"],
)
@pytest.mark.parametrize("capability", ["avx2", "default"])
def test_sums_of_ranks_are_rounded_once(launch, by, env, capability):
    outcome = launch("bfloat16.py", by=by, env=env | {"ATEN_CPU_CAPABILITY": capability})
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2
