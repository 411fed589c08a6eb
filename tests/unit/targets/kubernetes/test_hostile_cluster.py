"""Check that run records read from a cluster are treated as untrusted input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orch_node.protocol import values
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.model.layout import uniform_layout
from orchestrator.targets.kubernetes.follow import ReadLine
from orchestrator.targets.kubernetes.local_copy import RunCopy
from orchestrator.targets.kubernetes.log_lines import Position
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.plan import location
from orchestrator.targets.kubernetes.run_record import location_of, with_lists, without_lists
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from orchestrator.targets.kubernetes.trusted_record import trusted_record
from tests.support.recorded import RUN_RECORD as RECORD
from tests.unit.targets.ssh.test_hostile_runs import ESCAPES, JSON

OWN = KubernetesSettings(image="registry.example/orch:own", context="lab", namespace="team")
PLACES = uniform_layout(prefix="worker", nodes=2, ppn=1, threads=2)
NODES = tuple(RunNode(node=node) for node in PLACES.nodes)
MADE = replace(
    RECORD,
    node0=NODES[0],
    nodes=NODES,
    layout=PLACES.rank_places,
    target="kubernetes",
    location=values.record(location(RECORD.run_id, "pytorchjob", OWN)),
    output_dir=f"/orch/runs/{RECORD.run_id}/output",
)


def seen(record: RunRecord) -> RunRecord:
    return trusted_record(record, OWN, label=RECORD.run_id)


def said(**changes: Any) -> RunRecord:
    return replace(MADE, location={**MADE.location, **changes})


def test_an_unchanged_record_is_trusted() -> None:
    assert location_of(seen(with_lists(without_lists(MADE)))) == location(RECORD.run_id, "pytorchjob", OWN)


def test_the_image_and_programs_come_from_this_controller() -> None:
    evil = replace(
        said(
            image="evil",
            python="/evil",
            pull_secrets=["theirs"],
            context="x",
            namespace="y",
            service_account="admin",
            tolerations=["node-role.kubernetes.io/control-plane"],
        ),
        python="/evil",
        train="/evil",
        run_dir="/etc",
    )
    record = seen(evil)
    assert location_of(record) == location(RECORD.run_id, "pytorchjob", OWN)
    assert (record.python, record.train) == (OWN.python, "/opt/orch/train")
    assert record.run_dir == f"/orch/runs/{RECORD.run_id}"


@pytest.mark.parametrize(
    "record",
    [
        said(job="another"),
        said(job="../../../api/v1/namespaces/kube-system/pods/x"),
        said(group="", version="v1", plural="secrets"),
        said(launcher="evil"),
        said(claim="../x"),
        said(mount="/a/../.."),
        said(mount="x"),
        said(uid=0),
        said(uid="0"),
        replace(MADE, target="ssh"),
        replace(MADE, run_id="20260101-120000-qa-9999"),
        replace(MADE, output_dir="/root/.ssh"),
        replace(MADE, location={}),
        replace(MADE, output_dir="/orch/runs/../../root/output"),
    ],
)
def test_impossible_records_are_refused(record: RunRecord) -> None:
    with pytest.raises(OrchError):
        seen(record)


@pytest.mark.parametrize(
    "pods",
    [
        {"nodes": 0},
        {"nodes": 10**12},
        {"ppn": -1},
        {"nodes": -2, "ppn": -2},
        {"threads": 0},
        {"word": "../x"},
        {"word": ""},
        {"word": "a\nb"},
    ],
)
def test_impossible_pod_counts_are_refused(pods: dict[str, Any]) -> None:
    stored = without_lists(MADE)
    with pytest.raises(ProtocolError):
        with_lists({**stored, "pods": {**stored["pods"], **pods}})


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(MADE.location)), value=JSON)
def test_no_location_changes_the_image_or_the_cluster(name: str, value: Any) -> None:
    try:
        result = location_of(seen(said(**{name: value})))
    except OrchError:
        return
    assert (result.image, result.namespace, result.context) == (OWN.image, "team", "lab")
    assert (result.job, result.plural) == (names.job_name(RECORD.run_id), "pytorchjobs")


LINES = (
    "[99999999] evil",
    "[2] evil",
    "[-1] evil",
    "[٣] evil",
    '{"metrics": 2, "line": "evil"}',
    '{"metrics": -1, "line": "evil"}',
    '{"metrics": true, "line": "evil"}',
    "{" * 99_999,
    *(f'{{"metrics": "{name}", "line": "evil"}}' for name in ESCAPES),
)


def test_log_lines_create_only_files_of_the_run(tmp_path: Path) -> None:
    copy = RunCopy(tmp_path, ranks=2)
    for line in (*LINES, "[1] mine", '{"metrics": 0, "line": "mine"}'):
        copy.write(ReadLine(pod="uid", position=Position(), text=line))
    written_files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written_files == {"launcher.log", "ranks/rank-1.log", "ranks/rank-0.metrics.jsonl"}


def test_a_link_in_the_copy_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "r/ranks").mkdir(parents=True)
    (tmp_path / "r/ranks/rank-0.log").symlink_to(tmp_path / "mine")
    with pytest.raises(ExecuteError, match=r"rank-0\.log"):
        RunCopy(tmp_path / "r", ranks=1).write(ReadLine(pod="uid", position=Position(), text="[0] evil"))
    assert (tmp_path / "mine").read_text() == "mine"


def test_damaged_positions_are_ignored(tmp_path: Path) -> None:
    for text in ("", "[]", '{"a": 1}', '{"a": {"time": 1, "same": "x"}}', "[" * 99_999):
        (tmp_path / "kube.json").write_text(text)
        copy = RunCopy(tmp_path, ranks=1)
        assert copy.acquire()
        assert copy.positions == {}
        copy.release()
