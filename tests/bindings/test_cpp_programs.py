"""Parts of the backend without MPI, tested by C++ programs: waiting, route selection, bfloat16."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bindings.conftest import PROGRAMS

SOURCES = Path(__file__).parents[2] / "bindings/csrc"
SIMD_LEVELS = {None: ("none", "avx2", "avx512"), "avx2": ("none", "avx2"), "default": ("none",)}
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


def output_of(program: Path, env: dict[str, str] | None = None) -> str:
    # ThreadSanitizer's shadow memory needs fixed addresses.
    command = ["setarch", "--addr-no-randomize", program]
    result = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return result.stdout


@pytest.mark.parametrize("options", [(), ("-fsanitize=thread",)], ids=["plain", "thread-sanitizer"])
def test_a_driver_overtakes_a_waiting_thread_at_most_once(build: Build, options):
    assert output_of(build("fair_mutex", *options)) == "fine\n"


def test_a_polling_thread_spins_then_yields_then_sleeps(build: Build):
    assert output_of(build("backoff")) == "fine\n"


def test_the_faster_route_is_selected_and_selected_again_after_a_change(build: Build):
    assert output_of(build("routes", SOURCES / "routes.cpp")) == "fine\n"


@pytest.fixture(scope="module")
def combiner(build: Build) -> Path:
    return build("combiner", SOURCES / "combiner.cpp")


@pytest.mark.parametrize("capability", SIMD_LEVELS, ids=["processor", "avx2", "default"])
def test_bfloat16_sums_have_the_bits_of_the_scalar_loop(combiner: Path, capability: str | None):
    env = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    output = output_of(combiner, env | ({"ATEN_CPU_CAPABILITY": capability} if capability else {}))
    assert output.strip() in SIMD_LEVELS[capability], output
    if capability == "avx2" and "avx2" in Path("/proc/cpuinfo").read_text():
        assert output == "avx2\n"


@pytest.mark.parametrize(
    ("launcher", "capability", "env"),
    [
        ("mpi", "avx2", {"ORCH_CCL_SHARED_MEMORY": "1"}),
        ("mpi", "default", {"ORCH_CCL_SHARED_MEMORY": "1"}),
        ("mpi", "avx2", {"CCL_ALLREDUCE": "direct"}),
        ("mpi", "default", {"CCL_ALLREDUCE": "ring"}),
        ("bare", "avx2", {}),
    ],
    ids=["shared-memory", "shared-memory-scalar", "mpi", "ring", "ofi"],
)
def test_bfloat16_sums_of_ranks_are_rounded_once(run_ranks, launcher, capability, env):
    run_ranks("bfloat16.py", launcher=launcher, env=env | {"ATEN_CPU_CAPABILITY": capability})
