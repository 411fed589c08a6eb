"""The blocks of docs/ that are marked `dry-run`: each command is planned, on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.pages import PAGES, blocks

COMMANDS = [words for page in PAGES for block in blocks(page) if block.mark == "dry-run" for words in block.commands()]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_it_can_be_planned(words: list[str], tmp_path: Path) -> None:
    command = [*words, "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "run_" in done.stdout, "a script that starts the recipe's"
    assert list(tmp_path.iterdir()) == [], "nothing is written"
