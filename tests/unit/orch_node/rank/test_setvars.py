"""The variables that a setvars.sh sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from orch_node.rank import setvars

SETVARS = """
echo noise; echo more >&2
export CCL_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)" TEXT="two
lines = 1"
export LD_LIBRARY_PATH="$CCL_ROOT/lib:${LD_LIBRARY_PATH:-}"
[ -z "${MISLEADING:-}" ] || export CCL_ROOT=misled
"""


def test_setvars_is_sourced_in_a_clean_shell(tmp_path: Path) -> None:
    folder = tmp_path / "two words" / "env"
    folder.mkdir(parents=True)
    (folder / "setvars.sh").write_text(SETVARS)
    environ = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/old", "MISLEADING": "1"}
    assert setvars.sourced_variables(folder / "setvars.sh", environ) == {
        "CCL_ROOT": str(folder.parent),
        "TEXT": "two\nlines = 1",
        "LD_LIBRARY_PATH": f"{folder.parent}/lib:/old",
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [pytest.param("exit 3", "exit code 3", id="failing"), pytest.param(None, "is missing", id="missing")],
)
def test_setvars_error_names_the_reason(tmp_path: Path, text: str | None, reason: str) -> None:
    script = tmp_path / "setvars.sh"
    if text:
        script.write_text(text)
    with pytest.raises(setvars.SetvarsError, match=reason):
        setvars.sourced_variables(script, os.environ)
