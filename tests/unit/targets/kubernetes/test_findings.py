"""Check what `orch k8s check` finds in a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.targets.kubernetes import findings
from orchestrator.targets.kubernetes.init import token_secret, without_secrets
from orchestrator.targets.kubernetes.settings import KubernetesSettings

SETTINGS = KubernetesSettings(image="registry.example/orch:current", cpu="8", memory="16Gi")


def make_node(cpu: str = "16", memory: str = "64Gi", **more: Any) -> dict[str, Any]:
    labels = more.pop("labels", {})
    return {
        "metadata": {"name": "n", "labels": labels},
        "spec": more,
        "status": {"allocatable": {"cpu": cpu, "memory": memory}},
    }


def test_nodes_with_enough_resources_are_counted() -> None:
    taint = {"key": "x", "effect": "NoSchedule"}
    nodes = [make_node(), make_node("7900m"), make_node(taints=[taint]), make_node(unschedulable=True)]
    assert findings.nodes_finding(nodes, SETTINGS, 2).severity == "ok"
    short = findings.nodes_finding(nodes, SETTINGS, 3)
    assert short.severity == "miss"
    assert "1 of 4 nodes can take pods of 8 CPUs and 16Gi, 2 such pods in all" in short.message
    assert "16 allocatable CPUs" in short.cure
    assert findings.nodes_finding(None, SETTINGS, 1).severity == "unknown"
    assert findings.nodes_finding([], SETTINGS, 1).severity == "miss"


@pytest.mark.parametrize(
    ("tolerations", "affinity", "fitting"),
    [
        ((), (), 0),
        (("dedicated=training:NoSchedule",), (), 1),
        (("dedicated=training",), ("zone in (a, b)", "disk", "!spot"), 1),
        (("dedicated",), ("zone notin (c)",), 1),
        (("dedicated:NoExecute",), (), 0),
        (("dedicated=other:NoSchedule",), (), 0),
        (("dedicated",), ("zone in (b)",), 0),
        (("dedicated",), ("spot",), 0),
        (("dedicated",), ("!disk",), 0),
        (("dedicated",), ("zone notin (a)",), 0),
    ],
)
def test_tolerations_and_affinity_select_nodes(
    tolerations: tuple[str, ...], affinity: tuple[str, ...], fitting: int
) -> None:
    taint = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
    tainted_node = make_node(taints=[taint], labels={"zone": "a", "disk": "nvme"})
    kubernetes = replace(SETTINGS, tolerations=tolerations, node_affinity=affinity)
    description = findings.nodes_finding([tainted_node], kubernetes, 1).message
    assert f"{fitting} of 1 node can take pods" in description


def test_bf16_is_found_by_the_labels_of_nodes() -> None:
    able = make_node(labels={findings.BF16_LABELS[0]: "true"})
    assert findings.flags_finding([able], SETTINGS).severity == "ok"
    mixed = findings.flags_finding([able, make_node()], SETTINGS)
    assert (mixed.severity, mixed.message) == (
        "absent",
        "on 1 of 2 nodes that fit; a run with a pod on another node trains in fp32",
    )
    assert findings.flags_finding([make_node()], SETTINGS).severity == "unknown"


def test_claim_that_pods_cannot_use_is_found() -> None:
    bound = {"status": {"phase": "Bound"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    single_writer = {**bound, "spec": {"accessModes": ["ReadWriteOnce"]}}
    assert findings.claim_finding(bound, SETTINGS, 2).severity == "ok"
    assert findings.claim_finding(single_writer, SETTINGS, 1).severity == "ok"
    for claim, expected in ((None, "no claim"), ({}, "Pending"), (single_writer, "cannot share")):
        finding = findings.claim_finding(claim, SETTINGS, 2)
        assert (finding.severity, expected in finding.message, bool(finding.cure)) == ("miss", True, True)


def test_missing_kinds_and_rights_are_found() -> None:
    kinds = list(findings.kinds_findings({"pytorchjob": ("v1",)}, None))
    assert [finding.severity for finding in kinds] == ["ok", "absent", "absent", "absent"]
    assert {finding.severity for finding in findings.kinds_findings({}, None)} == {"miss"}
    assert list(findings.kinds_findings({"mpijob": ("v1",)}, "mpijob"))[1].message.endswith("only v1")
    missing = [("patch", "kubeflow.org", "pytorchjobs", "a PyTorchJob")]
    assert "verbs [patch]" in findings.rights_finding(missing, "team").cure
    assert findings.rights_finding([], "team").severity == "ok"


def test_token_is_not_printed() -> None:
    secret = token_secret(SETTINGS, "hf_secret")
    assert "hf_secret" not in json.dumps(without_secrets(secret))
    assert secret["data"]["HF_TOKEN"] not in json.dumps(without_secrets(secret))
