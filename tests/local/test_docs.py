"""Plan the commands on pages that are marked `dry-run`, on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.local.runs import expect_exit
from tests.support.pages import PAGES, blocks

COMMANDS = [
    arguments for page in PAGES for block in blocks(page) if block.mark == "dry-run" for arguments in block.commands()
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_command_of_a_page_can_be_planned(arguments: list[str], tmp_path: Path) -> None:
    command = [*arguments, "--dry-run"]
    result = expect_exit(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120))
    assert "run_" in result.stdout, "the script starts the recipe"
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"
