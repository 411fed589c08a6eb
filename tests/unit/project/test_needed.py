"""Check that missing compilers and headers are reported before anything is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
NEEDED = ROOT / "bindings" / "needed.py"


def test_missing_tools_are_reported_with_their_packages(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "CXX": "no-such-compiler -O3"}
    result = subprocess.run([sys.executable, str(NEEDED)], env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert "This machine lacks a C++ compiler ('no-such-compiler')" in result.stderr
    code = f"print(needed.describe(needed.missing_build_tools(pathlib.Path({str(tmp_path)!r}))))"
    command = [sys.executable, "-c", f"import needed, pathlib; {code}"]
    output = subprocess.run(command, cwd=NEEDED.parent, env=environment, capture_output=True, text=True).stdout
    assert "Python.h" in output
    assert "`apt install g++ python3-dev` (Debian, Ubuntu) or `dnf install gcc-c++ python3-devel`" in output
