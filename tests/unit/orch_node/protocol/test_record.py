"""Read the records of runs, of any version, and describe their damage."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol.record import RunRecord, parse, render
from orch_node.protocol.values import ProtocolError

from tests.support.hostile import JSON
from tests.support.recorded import RUN_RECORD

KUBERNETES_RECORD = replace(
    RUN_RECORD, target="kubernetes", location={"job": "orch-r", "uid": 1000, "pull_secrets": ["a"]}
)


def stored(record: RunRecord, **changes: Any) -> dict[str, Any]:
    """Return a record as its file contains it, with other values."""
    return {**json.loads(json.dumps(render(record))), **changes}


@pytest.mark.parametrize("record", [RUN_RECORD, KUBERNETES_RECORD], ids=["ssh", "kubernetes"])
def test_record_is_read_as_it_was_written(record: RunRecord) -> None:
    assert parse(stored(record)) == record
    assert parse(stored(record, colour="green")) == record, "fields of later versions are dropped"


def test_record_without_a_target_is_of_an_ssh_run() -> None:
    assert not {"target", "location"} & stored(RUN_RECORD).keys()
    assert parse(stored(RUN_RECORD)).target == "ssh"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        pytest.param({"schema": 2}, "schema 2", id="schema"),
        pytest.param({"run_id": None}, "run_id", id="null"),
        pytest.param({"resumes": 1}, "resumes", id="number"),
        pytest.param({"nodes": "node0"}, "nodes", id="text"),
        pytest.param({"nodes": [{"node": "n", "via": "ssh"}]}, "nodes[0]: via", id="text of a node"),
        pytest.param({"nodes": []}, "nodes", id="no nodes"),
        pytest.param({"nodes": [{"node": "node0"}] * 2}, "nodes", id="a node twice"),
        pytest.param({"node0": {"node": "another", "via": []}}, "node0", id="another node0"),
        pytest.param({"created": True}, "created", id="bool"),
        pytest.param({"created": float("nan")}, "created", id="nan"),
        pytest.param({"created": 10**400}, "created", id="larger than a float"),
        pytest.param({"created": -1.0}, "created", id="negative"),
        pytest.param({"layout": [{"rank": 0}]}, "layout[0]", id="incomplete"),
        pytest.param({"layout": []}, "layout", id="no ranks"),
        pytest.param({"location": []}, "location", id="list"),
    ],
)
def test_error_names_the_key_of_a_damaged_record(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ProtocolError) as exc_info:
        parse(stored(RUN_RECORD, **changes))
    assert key in str(exc_info.value)


def problem_of(record: dict[str, Any]) -> str:
    """Return why a record is rejected, or ""."""
    try:
        assert parse(record).run_id
    except ProtocolError as error:
        return str(error)
    return ""


@given(name=st.sampled_from(sorted(render(KUBERNETES_RECORD))), value=JSON)
def test_any_value_is_read_or_rejected_with_its_key(name: str, value: Any) -> None:
    problem = problem_of(stored(KUBERNETES_RECORD, **{name: value}))
    assert not problem or name in problem
