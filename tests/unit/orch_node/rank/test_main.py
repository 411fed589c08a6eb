"""The process of a rank reports why its script has ended."""

from __future__ import annotations

import json

import pytest
from orch_node.events import encode
from orch_node.rank.main import script_traceback

from orchestrator.runs.tracebacks import parse_last

FRAMES = "".join(f"\nframe #{index}: <unknown function> + 0x1 (0x7f in {'/lib' * 30}.so)" for index in range(40))
LOST = "ccl: rank 1 has left"
MISSING = "Error(s) in loading state_dict for Net:"
SIZES = "\n\tsize mismatch for layer.weight: copying a param with shape torch.Size([2, 3])" * 200


def step(depth: int, message: str) -> None:
    if depth:
        step(depth - 1, message)
    raise RuntimeError(message)


def test_traceback_in_an_event_keeps_the_exception_and_its_frames() -> None:
    for message, first, last in (
        (f"{LOST}\nException raised from error at x.cpp:1 (most recent call first):{FRAMES}", LOST, LOST),
        (MISSING + SIZES, MISSING, SIZES.splitlines()[-1]),  # long-message
    ):
        with pytest.raises(RuntimeError) as exc_info:
            step(50, message)
        line = encode("exception", {"text": script_traceback(exc_info.value, is_short=True)})
        traceback = parse_last(json.loads(line)["text"])
        assert traceback.frames[-1].function == "step"
        assert traceback.message[0] == f"RuntimeError: {first}"
        assert traceback.message[-1].endswith(last)
        assert script_traceback(exc_info.value).endswith(message)
