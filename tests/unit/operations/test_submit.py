"""Check the results of a submitted function."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ExecuteError
from orchestrator.operations import submit
from orchestrator.operations.function_call import describe
from orchestrator.operations.runs import handle_of
from orchestrator.operations.submit import restore
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


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = SCALARS | st.tuples(SCALARS, SCALARS)
VALUES: st.SearchStrategy[object] = st.recursive(
    SCALARS, lambda items: st.lists(items) | st.lists(items).map(tuple) | st.dictionaries(KEYS, items), max_leaves=20
)


@given(VALUES)
def test_result_of_a_submitted_function_keeps_its_types(value: object) -> None:
    result = restore(describe(value))
    assert (result, repr(result)) == (value, repr(value))


def test_result_without_a_representation_is_an_error() -> None:
    for value in ({1}, object(), b"x", 1j):
        with pytest.raises(TypeError, match=f"contains a {type(value).__name__}"):
            describe([value])
