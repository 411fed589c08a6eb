"""Check that missing compilers and headers are reported before anything is downloaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bindings import needed


def test_missing_tools_are_reported_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    result = subprocess.run([sys.executable, needed.__file__], capture_output=True, text=True)
    assert result.returncode == 1
    assert "This machine lacks a C++ compiler ('no-such-compiler')" in result.stderr
    output = needed.describe(needed.missing_build_tools(tmp_path))
    assert "Python.h" in output
    assert "`apt install g++ python3-dev` (Debian, Ubuntu) or `dnf install gcc-c++ python3-devel`" in output
