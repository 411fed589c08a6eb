"""Check that missing compilers and headers are reported before anything is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
NEEDED = ROOT / "bindings" / "needed.py"


def run_needed(code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import needed, pathlib; {code}"] if code else None
    return subprocess.run(
        command or [sys.executable, str(NEEDED)],
        cwd=NEEDED.parent,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
    )


def test_nothing_is_missing_on_this_machine() -> None:
    assert run_needed("print(needed.missing_build_tools())").stdout == "{}\n"


def test_missing_compiler_is_reported_with_its_packages() -> None:
    result = run_needed(CXX="no-such-compiler -O3")
    assert result.returncode == 1
    assert "This machine lacks a C++ compiler ('no-such-compiler')" in result.stderr
    assert "apt install g++" in result.stderr
    assert "dnf install gcc-c++" in result.stderr


def test_all_missing_packages_are_reported_at_once(tmp_path: Path) -> None:
    code = f"print(needed.describe(needed.missing_build_tools(pathlib.Path({str(tmp_path)!r}))))"
    output = run_needed(code, CXX="no-such-compiler").stdout
    assert "Python.h" in output
    assert "`apt install g++ python3-dev` (Debian, Ubuntu)" in output


def test_readme_names_the_required_packages() -> None:
    line = next(line for line in (ROOT / "README.md").read_text().splitlines() if "apt " in line)
    packages = set(line.split()[2:])
    assert packages == {"python3-venv", "python3-dev", "make", "g++"}
    text = NEEDED.read_text()
    assert all(f'"{package}"' in text for package in packages - {"make"})
