"""What a machine lacks is named before anything is fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
NEEDED = ROOT / "bindings" / "needed.py"


def needed(code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import needed, pathlib; {code}"] if code else None
    return subprocess.run(
        command or [sys.executable, str(NEEDED)],
        cwd=NEEDED.parent,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
    )


def test_this_machine_has_what_its_environment_was_made_with() -> None:
    assert needed("print(needed.to_build())").stdout == "{}\n"


def test_a_missing_compiler_is_named_with_its_packages() -> None:
    done = needed(CXX="no-such-compiler -O3")
    assert done.returncode == 1
    assert "not on this machine: a C++ compiler ('no-such-compiler')" in done.stderr
    assert "apt install g++" in done.stderr
    assert "dnf install gcc-c++" in done.stderr


def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    code = f"print(needed.told(needed.to_build(pathlib.Path({str(tmp_path)!r}))))"
    said = needed(code, CXX="no-such-compiler").stdout
    assert "Python.h" in said
    assert "`apt install g++ python3-dev` (Debian, Ubuntu)" in said


def test_readme_names_the_packages_that_are_asked_for() -> None:
    line = next(line for line in (ROOT / "README.md").read_text().splitlines() if "apt " in line)
    packages = set(line.split()[2:])
    assert packages == {"python3-venv", "python3-dev", "make", "g++"}
    text = NEEDED.read_text()
    assert all(f'"{package}"' in text for package in packages - {"make"})
