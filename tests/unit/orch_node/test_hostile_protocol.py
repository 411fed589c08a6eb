"""Whatever bytes a file or a node gives: a value of the protocol, or words about what is wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orch_node.protocol import agent, container, events, layout, listing, outcome, pod, record, values
from orch_node.protocol.cleanup import Cleaned, Leftovers, RunEnded
from orch_node.protocol.listing import DamagedRuns, ListedRun
from orch_node.protocol.logs import LogChunk
from orch_node.protocol.values import ProtocolError

from orchestrator.runs import provenance
from tests.unit.runs.test_record import RECORD
from tests.unit.targets.ssh.test_hostile_runs import JSON


def of(kind: type[Any]) -> Callable[[bytes], object]:
    return lambda text: values.read_known(kind, values.loads(text, "it"), "it")


PARSERS: dict[str, Callable[[bytes], object]] = {
    "layout.json": layout.parse,
    "outcome.json": outcome.parse,
    "supervisor.json": outcome.parse_supervisor,
    "container.json": container.parse,
    "pod.json": pod.parse,
    "run.json": lambda text: record.parse(values.loads(text, "it")),
    "plan.json": lambda text: provenance.parse(values.loads(text, "it")),
    "the list of runs": lambda text: listing.parse(text.decode(errors="replace")),
    "an event": events.parse,
    "a question": agent.parse_request,
    "an answer": agent.parse_response,
    **{one.__name__: of(one) for one in (RunEnded, Leftovers, Cleaned, DamagedRuns, LogChunk)},
}
WORDS = st.one_of(
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.just(b"[" * 20_000),
    st.just(b'{"a":' * 5_000),
    st.just(b"9" * 10_000),
)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=60, deadline=None)
@given(text=WORDS)
def test_what_is_read_is_a_value_or_is_refused(name: str, text: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        PARSERS[name](text)


RENDERED: dict[str, dict[str, Any]] = {
    "layout.json": {
        "schema": 1,
        "world_size": 1,
        "backend": "gloo",
        "backend_module": "",
        "timeout_seconds": 1.0,
        "nodes": [],
        "ranks": [
            {
                "rank": 0,
                "node": "a",
                "local_rank": 0,
                "local_world_size": 1,
                "cpus": [0],
                "worker_cpus": [],
                "threads": 1,
                "env": {},
            }
        ],
    },
    "run.json": record.render(RECORD),
    "the list of runs": {"schema": 1, "runs": [values.record(ListedRun({}, "done", None))], "damaged": []},
    "outcome.json": {
        "schema": 1,
        "state": "done",
        "first_failure": None,
        "problem": None,
        "launcher_code": 0,
        "started": 1.0,
        "ended": 2.0,
    },
}


@pytest.mark.parametrize("name", RENDERED)
def test_what_was_written_is_read(name: str) -> None:
    PARSERS[name](json.dumps(RENDERED[name]).encode())


@pytest.mark.parametrize("name", RENDERED)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), value=JSON)
def test_one_value_that_is_changed_is_read_or_refused(name: str, data: Any, value: Any) -> None:
    key = data.draw(st.sampled_from(sorted(RENDERED[name])))
    with contextlib.suppress(ProtocolError):
        PARSERS[name](json.dumps({**RENDERED[name], key: value}).encode())
