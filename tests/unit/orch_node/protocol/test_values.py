"""Every parser of the protocol returns a value or raises ProtocolError, whatever a file or a node contains."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol import agent, container, events, files, layout, outcome, pod, record, values
from orch_node.protocol.node_reports import Cleaned, ListedRun, Listing, RunReport
from orch_node.protocol.values import ProtocolError

from orchestrator.load.inputs import run_paths_of
from orchestrator.runs.origin import Origin
from tests.conftest import HOSTILE_TEXTS
from tests.support.hostile import JSON, UNSAFE_NAMES
from tests.support.layouts import make_layout
from tests.support.recorded import RUN_RECORD, make_outcome


def make_parser(kind: type[Any]) -> Callable[[bytes], object]:
    return lambda text: values.read(kind, values.loads(text, "it"), "it", ignore_unknown=True)


PARSERS: dict[str, Callable[[bytes], object]] = {
    "layout.json": layout.parse,
    "outcome.json": outcome.parse,
    "supervisor.json": outcome.parse_supervisor,
    "container.json": container.parse,
    "pod.json": pod.parse,
    "run.json": lambda text: record.parse(values.loads(text, "it")),
    "plan.json": make_parser(Origin),
    "event": events.parse,
    **{kind.__name__: make_parser(kind) for kind in (Cleaned, Listing, agent.Request, agent.Response)},
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


LOCATION = {"job": "orch-r", "uid": 1000, "pull_secrets": ["a"]}
KUBERNETES_RECORD = replace(RUN_RECORD, target="kubernetes", location=LOCATION)


def stored(run_record: record.RunRecord, **changes: Any) -> dict[str, Any]:
    """Return a record as its file contains it, with other values."""
    return {**json.loads(json.dumps(record.render(run_record))), **changes}


def test_record_is_read_as_it_was_written() -> None:
    for run_record in (RUN_RECORD, KUBERNETES_RECORD):
        assert record.parse(stored(run_record)) == run_record
        assert record.parse(stored(run_record, colour="green")) == run_record, "fields of later versions are dropped"
    assert not {"target", "location"} & stored(RUN_RECORD).keys(), "earlier versions read it"


def test_error_names_the_key_of_a_damaged_record() -> None:
    for changes, key in (
        ({"schema": 2}, "schema 2"),
        ({"nodes": []}, "nodes"),
        ({"nodes": [{"node": "node0"}] * 2}, "nodes"),  # a node twice
        ({"node0": {"node": "another", "via": []}}, "node0"),
        ({"created": -1.0}, "created"),  # negative
        ({"layout": []}, "layout"),  # no ranks
    ):
        with pytest.raises(ProtocolError) as exc_info:
            record.parse(stored(RUN_RECORD, **changes))
        assert key in str(exc_info.value)


def test_run_id_is_a_name_and_no_path() -> None:
    for name in UNSAFE_NAMES:
        assert not files.is_run_id(name)
        with pytest.raises(ProtocolError, match="run_id"):
            record.parse({**record.render(RUN_RECORD), "run_id": name})


def test_run_id_is_valid_for_any_recipe_name() -> None:
    for recipe in (*HOSTILE_TEXTS, "../..", "x" * 300):
        assert files.is_run_id(run_paths_of(None, recipe, "/runs", train="/train").run_id)


def test_rank_that_a_file_is_of() -> None:
    for name, rank in (
        ("rank-0.log", 0),
        ("rank-12.metrics.jsonl", 12),
        ("rank-0.txt", None),
        ("rank-01.log", None),
        ("rank-٣.log", None),
        ("../rank-0.log", None),
        ("rank-0.log\n", None),
    ):
        assert files.rank_of(name) == rank
