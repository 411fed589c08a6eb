"""Check the results of a submitted function."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError
from orchestrator.operations import submit
from orchestrator.operations.runs import handle_of
from orchestrator.runs import store
from tests.support.recorded import make_run


@pytest.mark.parametrize("texts", ['["1"]', '["1", "2", "3"]'])
def test_results_of_another_number_of_ranks_are_refused(tmp_path: Path, texts: str) -> None:
    """Otherwise a rank's future would wait for a result that never comes, or a result would be lost."""
    folder = make_run(tmp_path, "run", ranks=2, nodes=1)
    (folder / "output").mkdir(exist_ok=True)
    (folder / "output" / submit.RESULTS).write_text(texts)
    with pytest.raises(ExecuteError, match=r"run has . results, and was planned with 2 ranks"):
        submit.read_results(handle_of(store.load(folder)))
