"""Check that the program which sends files ends when its controller has gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from orchestrator.files import STANDALONE


def test_program_ends_without_sending_when_its_input_ends(tmp_path: Path) -> None:
    for request_line in ("", '["model.pt", 0, ""]\n'):
        (tmp_path / "model.pt").write_text("weights")
        command = [sys.executable, "-I", "-S", STANDALONE / "send_files.py"]
        text = json.dumps([str(tmp_path)]) + "\n" + request_line
        process = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=True)
        assert "model.pt" in process.stdout
        assert "weights" not in process.stdout
