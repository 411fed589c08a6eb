"""Every parser of the protocol returns a value or raises ProtocolError, whatever a file or a node contains."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol import agent, container, events, layout, outcome, pod, record, values
from orch_node.protocol.node_reports import Cleaned, ListedRun, Listing, LogChunk, RunReport
from orch_node.protocol.values import ProtocolError

from orchestrator.runs import provenance
from tests.support.hostile import JSON
from tests.support.layouts import make_layout
from tests.support.recorded import RUN_RECORD, make_outcome


def make_parser(kind: type[Any]) -> Callable[[bytes], object]:
    return lambda text: values.read_known(kind, values.loads(text, "it"), "it")


PARSERS: dict[str, Callable[[bytes], object]] = {
    "layout.json": layout.parse,
    "outcome.json": outcome.parse,
    "supervisor.json": outcome.parse_supervisor,
    "container.json": container.parse,
    "pod.json": pod.parse,
    "run.json": lambda text: record.parse(values.loads(text, "it")),
    "plan.json": lambda text: provenance.parse(values.loads(text, "it")),
    "event": events.parse,
    "request": agent.parse_request,
    "response": agent.parse_response,
    **{kind.__name__: make_parser(kind) for kind in (Cleaned, Listing, LogChunk)},
}
TEXTS = (
    st.binary(max_size=60)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.sampled_from([b"[" * 20_000, b'{"a":' * 5_000, b"9" * 10_000])
)


@pytest.mark.parametrize("name", PARSERS, ids=str)
@given(text=TEXTS)
def test_any_text_is_parsed_or_rejected(name: str, text: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        PARSERS[name](text)


VALID: dict[str, dict[str, Any]] = {
    "layout.json": json.loads(layout.render(make_layout("a"))),
    "run.json": record.render(RUN_RECORD),
    "Listing": {"schema": 1, "runs": [values.record(ListedRun({}, "done", RunReport()))], "damaged": []},
    "outcome.json": make_outcome(),
}


@pytest.mark.parametrize("name", VALID, ids=str)
@given(data=st.data(), value=JSON)
def test_changed_value_is_parsed_or_rejected(name: str, data: Any, value: Any) -> None:
    PARSERS[name](json.dumps(VALID[name]).encode())
    key = data.draw(st.sampled_from(sorted(VALID[name])))
    with contextlib.suppress(ProtocolError):
        PARSERS[name](json.dumps({**VALID[name], key: value}).encode())


def test_supervisor_pid_must_be_the_id_of_one_process() -> None:
    """Reject these ids: kill(-1) signals all processes of a user and kill(0) those of a group."""
    for pid in (-1, 0, 1, 2**40):
        with pytest.raises(ProtocolError, match="pid"):
            outcome.parse_supervisor(json.dumps({"pid": pid, "started": 1.0}))
