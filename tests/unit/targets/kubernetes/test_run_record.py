"""Check that the compact run record in a cluster is restored without loss, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol import pod, values
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import OrchError
from orchestrator.model.cluster import uniform_layout
from orchestrator.targets.kubernetes import names, run_record
from orchestrator.targets.kubernetes.manifests import KINDS
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from orchestrator.targets.kubernetes.target import state_in
from tests.support.hostile import JSON
from tests.support.kubernetes_api import Api, make_client
from tests.support.kubernetes_plans import REQUEST, SETTINGS, config, make_plan
from tests.support.recorded import RUN_RECORD as RECORD


@given(st.integers(1, 50), st.integers(1, 4), st.integers(1, 8))
def test_stored_record_is_restored_without_loss(pods: int, ppn: int, size: int) -> None:
    request = replace(REQUEST, nodes=pods, ppn=ppn)
    plan = make_plan(request=request, kubernetes=SETTINGS.model_copy(update={"cpu": str(ppn * size)}))
    stored = json.loads(json.dumps(run_record.without_lists(plan.run)))
    assert run_record.with_lists(stored, pod.parse(json.dumps(config(plan)))) == plan.run


def test_impossible_pod_counts_are_refused() -> None:
    for pods in ({"pods": 0}, {"pods": 10**12}, {"pods": -2, "ppn": -2}, {"word": "../x"}):
        numbers = pod.parse(json.dumps({**config(make_plan()), **pods}))
        with pytest.raises(ProtocolError):
            run_record.with_lists(run_record.without_lists(make_plan().run), numbers)


CONTROLLER_SETTINGS = KubernetesSettings(image="registry.example/orch:own", context="lab", namespace="team")
LAYOUT = uniform_layout(prefix="worker", nodes=2, ppn=1, threads=2)
NODES = tuple(RunNode(node=node) for node in LAYOUT.nodes)
CLUSTER_RECORD = replace(
    RECORD,
    node0=NODES[0],
    nodes=NODES,
    layout=LAYOUT.rank_places,
    target="kubernetes",
    location=values.record(run_record.new_location(RECORD.run_id, "pytorchjob", CONTROLLER_SETTINGS)),
    output_dir=f"/orch/runs/{RECORD.run_id}/output",
)


def trusted(record: RunRecord) -> RunRecord:
    return run_record.trusted_record(record, CONTROLLER_SETTINGS, label=RECORD.run_id)


def test_state_of_a_job_that_may_not_be_read_is_unknown() -> None:
    with Api() as api:
        api.fail_requests("GET", "pytorchjobs/", 403)
        assert state_in(make_client(api.url), make_record()) == "unknown"


def make_record(**changes: Any) -> RunRecord:
    return replace(CLUSTER_RECORD, location={**CLUSTER_RECORD.location, **changes})


def test_image_and_programs_come_from_this_controller() -> None:
    evil = replace(
        make_record(
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
    record = trusted(evil)
    assert run_record.location_of(record) == run_record.new_location(RECORD.run_id, "pytorchjob", CONTROLLER_SETTINGS)
    assert (record.python, record.train) == (CONTROLLER_SETTINGS.python, "/opt/orch/train")
    assert record.run_dir == f"/orch/runs/{RECORD.run_id}"


def test_impossible_records_are_refused() -> None:
    for record in (
        make_record(job="../../../api/v1/namespaces/kube-system/pods/x"),
        make_record(launcher="evil"),
        make_record(claim="../x"),
        make_record(mount="/a/../.."),
        make_record(uid=0),
        replace(CLUSTER_RECORD, target="ssh"),
        replace(CLUSTER_RECORD, run_id="20260101-120000-qa-9999"),
        replace(CLUSTER_RECORD, output_dir="/root/.ssh"),
        replace(CLUSTER_RECORD, location={}),
        replace(CLUSTER_RECORD, output_dir="/orch/runs/../../root/output"),
    ):
        with pytest.raises(OrchError):
            trusted(record)


@given(name=st.sampled_from(sorted(CLUSTER_RECORD.location)), value=JSON)
def test_no_location_changes_the_image_or_the_cluster(name: str, value: Any) -> None:
    try:
        result = run_record.location_of(trusted(make_record(**{name: value})))
    except OrchError:
        return
    assert (result.image, result.namespace, result.context) == (CONTROLLER_SETTINGS.image, "team", "lab")
    assert result.job == names.job_name(RECORD.run_id)
    assert result.launcher in KINDS
