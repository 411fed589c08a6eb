"""Messages between ranks carry values, and never code."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from orch_training.messages import MessageError, decode, encode

from orchestrator.operations.function_call import describe
from orchestrator.operations.submit import restore

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = SCALARS | st.tuples(SCALARS, SCALARS)


def values(scalars: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.recursive(
        scalars,
        lambda items: st.lists(items) | st.lists(items).map(tuple) | st.dictionaries(KEYS, items),
        max_leaves=20,
    )


@given(values(SCALARS | st.binary()))
def test_message_restores_value_with_its_types(value: object) -> None:
    result = decode(encode(value))
    assert (result, repr(result)) == (value, repr(value))


@given(values(SCALARS))
def test_result_of_a_submitted_function_keeps_its_types(value: object) -> None:
    result = restore(describe(value))
    assert (result, repr(result)) == (value, repr(value))


def test_result_without_a_representation_is_an_error() -> None:
    for value in ({1}, object(), b"x", 1j):
        with pytest.raises(TypeError, match=f"contains a {type(value).__name__}"):
            describe([value])


def test_message_restores_tensors() -> None:
    for tensor in (
        torch.arange(6).reshape(2, 3).t(),  # not-contiguous
        torch.tensor(1.5, dtype=torch.bfloat16),  # scalar-bf16
        torch.empty(0, 4),
        torch.tensor([True, False]),  # bool
    ):
        (result,) = decode(encode([tensor]))
        assert result.dtype == tensor.dtype
        assert torch.equal(result, tensor)


@given(st.binary(max_size=200).filter(lambda message: not message.startswith(b"\x01" + bytes(7))))
@example(bytes(7) + b"\x010")
@example((44).to_bytes(8, "little") + b'{"tensor": ["bool", [%d]]}' % 2**64)
@example(pickle.dumps({"a": 1}))
def test_damaged_message_is_an_error(message: bytes) -> None:
    """Decode anything but messages of one digit, which are valid."""
    with pytest.raises(MessageError):
        decode(message)
