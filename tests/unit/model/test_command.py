"""Commands survive a shell unchanged."""

from __future__ import annotations

import json
import subprocess
import sys

from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.model.printable import Command
from tests.conftest import HOSTILE_TEXTS

PRINT_ARGUMENTS = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('VALUE')]))"
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@example(arguments=list(HOSTILE_TEXTS), value=HOSTILE_TEXTS[0])
@given(arguments=st.lists(TEXT, max_size=4), value=TEXT)
def test_shell_runs_exactly_this_command(arguments: list[str], value: str) -> None:
    command = Command(argv=(sys.executable, "-c", PRINT_ARGUMENTS, *arguments), env=(("VALUE", value),))
    result = subprocess.run(["sh", "-c", command.shell()], capture_output=True, check=True)
    assert json.loads(result.stdout) == [arguments, value]
