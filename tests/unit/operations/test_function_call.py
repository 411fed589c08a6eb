"""Results of functions that run on the ranks, in JSON."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.operations.function_call import describe
from orchestrator.operations.submit import restore

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
