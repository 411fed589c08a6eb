"""Parts of the backend without MPI, tested by C++ programs: waiting, route selection, shared files; and bfloat16."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bindings.conftest import PROGRAMS

SOURCES = Path(__file__).parents[2] / "bindings/csrc"
Build = Callable[..., Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory) -> Build:
    """Return build(name, sources, *options), which compiles programs/NAME.cpp."""

    def compile_program(name: str, *arguments: str | Path) -> Path:
        program = tmp_path_factory.mktemp(name) / name
        compiler = ["g++", "-std=c++20", "-O2", "-Wall", "-Werror", "-pthread", "-I", SOURCES, "-o", program]
        subprocess.run([*compiler, PROGRAMS / f"{name}.cpp", *arguments], check=True)
        return program

    return compile_program


def output_of(program: Path) -> str:
    # ThreadSanitizer's shadow memory needs fixed addresses.
    command = ["setarch", "--addr-no-randomize", program]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return result.stdout


@pytest.mark.parametrize("options", [(), ("-fsanitize=thread",)], ids=["plain", "thread-sanitizer"])
def test_a_driver_overtakes_a_waiting_thread_at_most_once(build: Build, options):
    assert output_of(build("fair_mutex", *options)) == "fine\n"


def test_a_polling_thread_spins_then_yields_then_sleeps(build: Build):
    assert output_of(build("backoff")) == "fine\n"


def test_the_faster_route_is_selected_and_selected_again_after_a_change(build: Build):
    assert output_of(build("routes", SOURCES / "routes.cpp")) == "fine\n"


def test_forged_memory_files_and_ids_are_rejected(build: Build):
    assert output_of(build("memory_file", SOURCES / "memory_file.cpp")) == "fine\n"


@pytest.mark.parametrize("capability", [None, "avx2", "default"], ids=["processor", "avx2", "scalar"])
def test_bfloat16_results_in_shared_memory_are_rounded_once(run_ranks, capability):
    """Compare the arithmetic of each instruction set, with several numbers of sources."""
    env = {"ORCH_CCL_SHARED_MEMORY": "1"} | ({"ATEN_CPU_CAPABILITY": capability} if capability else {})
    run_ranks("bfloat16.py", "SUM", "PRODUCT", "MIN", "MAX", launcher="bare", ranks=3, env=env)


@pytest.mark.parametrize(
    ("launcher", "capability", "algorithm"),
    [("mpi", "avx2", "direct"), ("mpi", "default", "ring"), ("bare", "avx2", "ring")],
    ids=["mpi", "ring", "ofi"],
)
def test_bfloat16_sums_of_oneccl_are_rounded_once(run_ranks, launcher, capability, algorithm):
    """Use two ranks: with more, oneCCL rounds each partial sum."""
    env = {"CCL_ALLREDUCE": algorithm, "ATEN_CPU_CAPABILITY": capability}
    run_ranks("bfloat16.py", "SUM", launcher=launcher, env=env)
