"""Check that `make test-all` sets, or CONTRIBUTING describes, each variable that selects tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
LOOKUP = re.compile(r'"(ORCH_\w+)"(?: not)? in os\.environ|os\.environ(?:\.get\(|\[)"(ORCH_\w+)"')
# Set by ranks and fixtures, or by developers.
NOT_CONDITIONS = """
    ORCH_ATTEMPT ORCH_DATA ORCH_EVENTS_FD ORCH_NODE ORCH_RUN_DIR ORCH_WRITE_GOLDEN
"""


def variables() -> set[str]:
    """Return the variables that select tests."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    matches = {name for text in texts for groups in LOOKUP.findall(text) for name in groups if name}
    return matches - {*NOT_CONDITIONS.split()}


def test_contributing_has_a_row_for_each_variable_that_selects_tests() -> None:
    rows = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if "|" in line]
    assert variables() == {name for row in rows for name in re.findall(r"`(ORCH_\w+)", row)}


def test_make_test_all_sets_each_variable_that_needs_no_path() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile[makefile.index("test-all: export") : makefile.index("test-unit:")]
    paths = {"ORCH_CRDS", "ORCH_FRAMEWORKS_PYTHON", "ORCH_GPU_VENV", "ORCH_IPEX_PYTHON", "ORCH_PBS"}
    assert set(re.findall(r"ORCH_\w+", recipe)) == variables() - paths
