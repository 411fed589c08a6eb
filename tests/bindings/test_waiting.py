"""How threads of the backend wait: for the engine's lock, and between two polls."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.bindings.conftest import PROGRAMS

SOURCES = Path(__file__).parents[2] / "bindings/csrc"


def output_of(name: str, folder: Path, *options: str) -> str:
    """Compile a program against the sources of the backend, run it and return its output."""
    program = folder / name
    compiler = ["g++", "-std=c++20", "-O1", "-Wall", "-Werror", "-pthread", "-I", SOURCES, *options]
    subprocess.run([*compiler, "-o", program, PROGRAMS / f"{name}.cpp"], check=True)
    # ThreadSanitizer's shadow memory needs fixed addresses.
    result = subprocess.run(
        ["setarch", "--addr-no-randomize", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return result.stdout


@pytest.mark.parametrize("options", [(), ("-fsanitize=thread",)], ids=["plain", "thread sanitizer"])
def test_a_driver_overtakes_a_waiting_thread_once_at_most(options, tmp_path):
    assert output_of("fair_mutex", tmp_path, *options) == "fine\n"


def test_a_polling_thread_spins_then_yields_then_sleeps(tmp_path):
    assert output_of("backoff", tmp_path) == "fine\n"
