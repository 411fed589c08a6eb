"""Messages between ranks: JSON, with bytes and tensors after it. Unlike a pickle, a message cannot run code."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import torch

LENGTH_BYTES = 8  # of the JSON's length, which comes first
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
}


class MessageError(Exception):
    """A message of another rank that is damaged or forged."""


def encode(value: Any) -> bytes:
    """Return a value as a message.

    Raises:
        TypeError: if it contains something other than None, numbers, text, bytes, tensors, lists, tuples and dicts.
    """
    data: list[bytes] = []
    head = json.dumps(describe(value, data)).encode()
    return b"".join((len(head).to_bytes(LENGTH_BYTES, "little"), head, *data))


def describe(value: Any, data: list[bytes]) -> Any:
    """Return a value in JSON and append its bytes and tensors to `data`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [describe(item, data) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [describe(item, data) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[describe(key, data), describe(item, data)] for key, item in value.items()]}
    if isinstance(value, bytes):
        data.append(value)
        return {"bytes": len(value)}
    if isinstance(value, torch.Tensor):
        data.append(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    raise TypeError(f"{type(value).__name__} cannot be sent to other ranks")


def decode(message: bytes) -> Any:
    """Return the value of a message.

    Raises:
        MessageError: if it is damaged.
    """
    size = int.from_bytes(message[:LENGTH_BYTES], "little")
    if size > len(message) - LENGTH_BYTES:
        raise MessageError("a message of another rank is damaged: its end is missing")
    data = io.BytesIO(message[LENGTH_BYTES + size :])
    try:
        return restore(json.loads(message[LENGTH_BYTES : LENGTH_BYTES + size]), data)
    except (ValueError, TypeError, KeyError, RuntimeError, RecursionError, OverflowError) as error:
        raise MessageError(f"a message of another rank is damaged: {error}") from None


def restore(value: Any, data: io.BytesIO) -> Any:
    """Return a value from its JSON and from what follows it."""
    if isinstance(value, list):
        return [restore(item, data) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(restore(item, data) for item in content)
    if kind == "dict":
        return {restore(key, data): restore(item, data) for key, item in content}
    if kind == "bytes":
        return read(data, content)
    name, shape = content
    dtype = DTYPES[name]
    raw = read(data, math.prod(shape) * torch.empty(0, dtype=dtype).element_size())
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)


def read(data: io.BytesIO, size: int) -> bytes:
    """Return the next bytes; raise ValueError if there are fewer."""
    content = data.read(size)
    if len(content) != size:
        raise ValueError(f"{size} bytes expected, {len(content)} received")
    return content
