"""Records of runs are read whichever version wrote them, and their damage is described."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol.record import Decision, Place, RunNode, RunRecord, parse, render
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError
from orchestrator.runs import store
from tests.support.recorded import make_plan, make_run

NODE0 = RunNode(node="node0", via=("ssh", "-F", "/state/ssh config", "node0"))
RECORD = RunRecord(
    run_id="20260101-120000-qa-0000",
    key="k",
    node0=NODE0,
    nodes=(NODE0, RunNode(node="n1")),
    run_dir="/opt/orch/runs/r",
    train="/opt/orch/train",
    python="python3",
    recipe="qa",
    resumes=True,
    output_dir=None,
    backend="ccl",
    precision="bf16",
    started_by="me@here",
    created=1.5,
    decisions=(Decision(topic="ranks", value="1", reason="as asked"),),
    layout=(Place(rank=0, node="node0", local_rank=0, local_world_size=1, cpus=(0, 2), threads=2),),
)
LOCATION = {"job": "orch-r", "uid": 1000, "pull_secrets": ["a"]}
ELSEWHERE = replace(RECORD, target="kubernetes", location=LOCATION)


def as_written(record: RunRecord) -> dict[str, Any]:
    return dict(json.loads(json.dumps(render(record))))


@pytest.mark.parametrize("record", [RECORD, ELSEWHERE])
def test_what_is_written_is_read(record: RunRecord) -> None:
    assert parse(as_written(record)) == record


def test_a_record_without_a_target_is_one_of_nodes_behind_ssh() -> None:
    written = as_written(RECORD)
    assert not {"target", "location"} & written.keys()
    assert parse(written).target == "ssh"


def test_what_a_later_version_says_besides_is_dropped() -> None:
    assert parse({**as_written(RECORD), "colour": "green"}) == RECORD


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 2}, "schema 2"),
        ({"run_id": None}, "run_id"),
        ({"resumes": 1}, "resumes"),
        ({"nodes": "node0"}, "nodes"),
        ({"nodes": [{"node": "n", "via": "ssh"}]}, "nodes[0]: via"),
        ({"created": True}, "created"),
        ({"layout": [{"rank": 0}]}, "layout[0]"),
        ({"location": []}, "location"),
    ],
)
def test_damage_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse({**as_written(RECORD), **changes})
    assert words in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def problem(written: dict[str, Any]) -> str:
    try:
        parse(written)
    except ProtocolError as error:
        return str(error)
    return ""


@given(name=st.sampled_from(sorted(render(ELSEWHERE))), value=JSON)
def test_hostile_values_are_read_or_refused(name: str, value: Any) -> None:
    written = {**as_written(ELSEWHERE), name: value}
    if refused := problem(written):
        assert name in refused
    else:
        assert parse(written).run_id


def test_a_damaged_plan_is_an_error_with_its_path(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run")
    for text in ("{", "{}", json.dumps(make_plan(folder, []) | {"settings": 7})):
        (folder / "plan.json").write_text(text)
        with pytest.raises(ExecuteError) as caught:
            store.load(folder)
        assert str(folder / "plan.json") in caught.value.message
        assert str(folder) in caught.value.hint


def test_a_run_that_its_target_alone_can_see_counts_as_running(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", target="kubernetes", location=LOCATION)
    assert store.load(folder).state == "done"
    (folder / "outcome.json").unlink()
    assert store.load(folder).state == "running"
