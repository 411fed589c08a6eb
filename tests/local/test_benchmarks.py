"""Run the benchmark between hosts, in namespaces of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.local.runs import expect_exit

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "between_hosts.py"
MBIT = 1e6 / 8


def test_benchmark_between_hosts_measures_link_and_collective(tmp_path: Path) -> None:
    results_file = tmp_path / "out.json"
    options = ["--rate", "200mbit", "--only", "all_gather", "--max-mb", "1", "--repeat", "3"]
    command = [sys.executable, SCRIPT, *options, "--seconds", "0.1", "--json", results_file]
    process = expect_exit(subprocess.run(command, capture_output=True, text=True, timeout=300))
    results = json.loads(results_file.read_text())
    assert 20 * MBIT < results["about"]["link"] < 205 * MBIT
    largest = results["rows"][3]
    assert (largest["name"], largest["dtype"], largest["bytes"]) == ("all_gather", "float32", 1 << 20)
    assert 1 < largest["sent"] < 1.3, "all bytes go over the link, with headers"
    assert largest["ccl_s"] > largest["least_s"] / 2
    assert "all_gather     float32      1 MB" in process.stdout
