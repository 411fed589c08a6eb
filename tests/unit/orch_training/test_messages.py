"""Messages between ranks carry values, and never code."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from orch_training.messages import MessageError, decode, encode

from orchestrator.files import LIB
from orchestrator.operations.function_call import describe
from orchestrator.operations.submit import restore
from tests.support.ports import free_port

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
def test_damaged_message_is_an_error(message: bytes) -> None:
    """Decode anything but messages of one digit, which are valid."""
    with pytest.raises(MessageError):
        decode(message)


def test_pickle_is_not_loaded() -> None:
    with pytest.raises(MessageError):
        decode(pickle.dumps({"a": 1}))


# Two ranks share the time that the import of torch takes.
RANKS = """
import os
from orch_training import ranks
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "1" if os.fork() else "0"
ranks.join()
number = ranks.rank()
print(ranks.gather((number, b"x" * number, "a" * 5 * number)), ranks.broadcast(1, {number: None}))
ranks.destroy_group()
if number:
    os.wait()
"""


def test_ranks_gather_values_of_different_sizes() -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "PYTHONPATH": str(LIB)}
    process = subprocess.run(
        [sys.executable, "-c", RANKS], env={**os.environ, **variables}, capture_output=True, text=True, timeout=240
    )
    assert process.stdout == "[(0, b'', ''), (1, b'x', 'aaaaa')] {1: None}\n" * 2, process.stderr
