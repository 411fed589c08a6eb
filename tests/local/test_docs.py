"""Plan the commands on pages that are marked `dry-run`, on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit
from tests.support.pages import PAGES, blocks

COMMANDS = [
    arguments for page in PAGES for block in blocks(page) if block.mark == "dry-run" for arguments in block.commands()
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_command_of_a_page_can_be_planned(arguments: list[str], orch: Orch, tmp_path: Path) -> None:
    program, *options = arguments
    assert program == "orch"
    assert "run_" in expect_exit(orch(*options, "--dry-run")).stdout, "the script starts the recipe"
    assert [path.name for path in tmp_path.iterdir()] == [".cache"], "a dry run writes nothing else"
