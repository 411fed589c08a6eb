"""Which way data goes between two cores: by what it takes, not by what a machine tells."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.bindings.conftest import PROGRAMS

SOURCES = Path(__file__).parents[2] / "bindings/csrc"


def test_the_faster_route_is_found_and_found_again(tmp_path):
    program = tmp_path / "routes"
    sources = [PROGRAMS / "routes.cpp", SOURCES / "routes.cpp"]
    compiler = ["g++", "-std=c++17", "-Wall", "-Werror", "-I", SOURCES, "-o", program]
    subprocess.run([*compiler, *sources], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("fine\n", 0)
