"""The benchmark between hosts, in namespaces of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.local.runs import expect_exit

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "between_hosts.py"
MBIT = 1e6 / 8


def test_between_hosts(tmp_path: Path) -> None:
    written = tmp_path / "out.json"
    options = ["--rate", "200mbit", "--only", "all_gather", "--max-mb", "1", "--repeat", "3"]
    command = [sys.executable, SCRIPT, *options, "--seconds", "0.1", "--json", written]
    process = expect_exit(subprocess.run(command, capture_output=True, text=True, timeout=300, check=False))
    found = json.loads(written.read_text())
    assert 20 * MBIT < found["about"]["link"] < 205 * MBIT
    longest = found["rows"][3]
    assert (longest["name"], longest["dtype"], longest["bytes"]) == ("all_gather", "float32", 1 << 20)
    assert 1 < longest["sent"] < 1.3  # it all goes over the link, headers and all
    assert longest["ccl_s"] > longest["least_s"] / 2
    assert "all_gather     float32      1 MB" in process.stdout
