"""Check that text from elsewhere cannot control the terminal."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import OrchError
from orchestrator.model.printable import one_line
from tests.support.hostile import ESCAPE_SEQUENCE


@given(st.text())
def test_one_line_is_printable(text: str) -> None:
    assert one_line(text).isprintable()


def test_errors_of_the_command_line_are_printable() -> None:
    text = (
        "from orchestrator.errors import OrchError\n"
        "from orchestrator.cli import main\n"
        f"def fail(arguments): raise OrchError({ESCAPE_SEQUENCE!r} + 'x', hint={ESCAPE_SEQUENCE!r})\n"
        "main.make_app = lambda name: fail\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (done.returncode, "\x1b" in done.stderr) == (OrchError.exit_code, False)
