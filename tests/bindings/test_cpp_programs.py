"""Parts of the backend without MPI, tested by C++ programs: waiting, route selection, shared files; and bfloat16."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.bindings.conftest import PROGRAMS

SOURCES = Path(__file__).parents[2] / "bindings/csrc"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fair_mutex", ()),
        ("fair_mutex", ("-fsanitize=thread",)),
        ("backoff", ()),
        ("routes", (SOURCES / "routes.cpp",)),
        ("memory_file", (SOURCES / "memory_file.cpp",)),
    ],
)
def test_cpp_program_finds_no_mistake(tmp_path: Path, name, arguments):
    """Compile and run a program, whose first line describes what it checks."""
    program = tmp_path / name
    compiler = ["g++", "-std=c++20", "-O2", "-Wall", "-Werror", "-pthread", "-I", SOURCES, "-o", program]
    subprocess.run([*compiler, PROGRAMS / f"{name}.cpp", *arguments], check=True)
    # ThreadSanitizer's shadow memory needs fixed addresses.
    command = ["setarch", "--addr-no-randomize", program]
    assert subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout == "fine\n"


@pytest.mark.parametrize("capability", [None, "avx2", "default"], ids=["processor", "avx2", "scalar"])
def test_bfloat16_results_in_shared_memory_are_rounded_once(run_ranks, capability):
    """Compare the arithmetic of each instruction set, with several numbers of sources."""
    env = {"ORCH_CCL_SHARED_MEMORY": "1"} | ({"ATEN_CPU_CAPABILITY": capability} if capability else {})
    run_ranks("bfloat16.py", "SUM", "PRODUCT", launcher="bare", ranks=3, env=env)


@pytest.mark.parametrize(
    ("launcher", "capability", "algorithm"),
    [("mpi", "avx2", "direct"), ("mpi", "default", "ring"), ("bare", "avx2", "ring")],
)
def test_bfloat16_sums_of_oneccl_are_rounded_once(run_ranks, launcher, capability, algorithm):
    """Use two ranks: with more, oneCCL rounds each partial sum."""
    env = {"CCL_ALLREDUCE": algorithm, "ATEN_CPU_CAPABILITY": capability}
    run_ranks("bfloat16.py", "SUM", launcher=launcher, env=env)
