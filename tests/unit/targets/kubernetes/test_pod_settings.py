"""Settings about nodes, volumes, variables and queues -> manifests, for each kind of job."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import PlanError, RequestError
from orchestrator.targets.kubernetes import kueue
from orchestrator.targets.kubernetes.load import kube_settings
from orchestrator.targets.kubernetes.manifests import names, pod_settings
from tests.kube_schema import check, needs_crds
from tests.unit.targets.kubernetes.test_plan_kube import CASES, SETTINGS, SITE, containers, decide, objects

PAIRS = (
    "queue=team-a",
    "spread=kubernetes.io/hostname",
    "runtime_class=kata",
    "node_affinity=topology.kubernetes.io/zone in (a, b)",
    "node_affinity=!spot",
    "tolerations=dedicated=training:NoSchedule,spot:NoExecute",
    "env.NAME=a $(HOME)",
    "secret_env.WANDB_API_KEY=wandb/key",
    "volumes=claim:data:/data:ro,secret:certs:/certs",
)


def asked(*pairs: str) -> Any:
    found = kube_settings(None, ["image=registry.example/orch:current", "cpu=8", *pairs])
    return replace(found, namespace="team")


def pods(made: Any) -> list[dict[str, Any]]:
    """The specs of all pods that these objects make."""
    if isinstance(made, list):
        return [one for value in made for one in pods(value)]
    if not isinstance(made, dict):
        return []
    return [*([made] if "containers" in made else []), *pods(list(made.values()))]


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_job_has_what_was_asked(case: str) -> None:
    launcher, changes = CASES[case]
    made = objects(decide(launcher, kube=replace(asked(*PAIRS), **changes)))
    assert made[-1]["metadata"]["labels"][names.QUEUE] == "team-a"
    found = pods(list(made))
    assert found
    for pod in found:
        assert pod["runtimeClassName"] == "kata"
        assert pod["tolerations"] == [
            {"key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"},
            {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
        ]
        (constraint,) = pod["topologySpreadConstraints"]
        assert constraint["topologyKey"] == "kubernetes.io/hostname"
        assert constraint["labelSelector"]["matchLabels"] == names.labels(SITE.run_id)
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        zone, spot = term["matchExpressions"]
        assert (zone["operator"], zone["values"]) == ("In", ["a", "b"])
        assert spot == {"key": "spot", "operator": "DoesNotExist"}
        mounted = {one["mountPath"]: one for one in pod["containers"][0]["volumeMounts"]}
        assert mounted["/data"]["readOnly"]
        assert mounted["/certs"]["readOnly"]
    for one in containers(list(made)):
        variables = {each["name"]: each for each in one["env"]}
        assert variables["NAME"]["value"] == "a $$(HOME)"
        assert variables["WANDB_API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "wandb", "key": "key"}


@needs_crds
@pytest.mark.parametrize("case", CASES)
def test_the_crds_take_it(case: str) -> None:
    launcher, changes = CASES[case]
    packed = replace(asked(*PAIRS[2:], "pack=topology.kubernetes.io/rack"), **changes)
    for one in objects(decide(launcher, kube=packed))[1:]:
        if one["kind"] != "Service":
            check(one)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (("env.HF_TOKEN=hf_x",), "env: HF_TOKEN would show a secret"),
        (("env.WANDB_API_KEY=x",), "would show a secret"),
        (("env.OMP_NUM_THREADS=3",), "OMP_NUM_THREADS: set by orch itself"),
        (("secret_env.PET_NNODES=a/b",), "PET_NNODES: set by orch itself"),
        (("secret_env.A=nokey",), "expected SECRET/KEY"),
        (("env.A-B=x",), "not a valid variable name"),
        (("tolerations=a:Never",), "is not a valid taint"),
        (("node_affinity=a in b",), "is not a valid condition"),
        (("volumes=host:a:/b",), "is not a valid volume"),
        (("volumes=claim:a:/b/../c",), "is not a valid volume"),
        (("spread=a b",), "is not a valid label key"),
        (("spread=a", "pack=a"), "excludes each other"),
        (("queue=A B",), "queue = 'A B'"),
    ],
)
def test_what_is_refused(pairs: tuple[str, ...], words: str) -> None:
    with pytest.raises(PlanError, match=re.escape(words)):
        decide("job", kube=asked(*pairs))


def test_a_table_is_written_by_its_names() -> None:
    with pytest.raises(RequestError, match="unknown key") as caught:
        kube_settings(None, ["env=A"])
    assert "env.NAME=VALUE" in caught.value.hint


def test_the_file_has_the_same(tmp_path: Path) -> None:
    path = tmp_path / "k8s.toml"
    path.write_text(
        'queue = "team-a"\ntolerations = ["spot:NoExecute"]\nnode_affinity = ["!spot"]\n'
        '[env]\nA = "b"\n[secret_env]\nC = "d/e"\n'
    )
    found = kube_settings(path, ["env.B=c"])
    assert (found.queue, found.tolerations, found.node_affinity) == ("team-a", ("spot:NoExecute",), ("!spot",))
    assert (found.env, found.secret_env) == ({"A": "b", "B": "c"}, {"C": "d/e"})


def test_pods_that_are_packed_look_for_each_other() -> None:
    found = pod_settings.affinity((), "topology.kubernetes.io/rack", names.labels("r"))
    (term,) = found["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "topology.kubernetes.io/rack"


def test_what_kueue_says_is_told() -> None:
    waits = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota"}
    assert kueue.describe_workload({"status": {"conditions": [waits]}}, "ClusterQueue cpu") == (
        "waits for quota in ClusterQueue cpu: insufficient unused quota"
    )
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "for x"}
    told = kueue.describe_workload({"status": {"conditions": [waits, evicted]}}, "ClusterQueue cpu")
    assert told.startswith("suspended by Kueue (Preempted): for x; it resumes from its newest")


def test_settings_that_are_not_given_change_nothing() -> None:
    made = [one for one in objects(decide("job", kube=SETTINGS)) if one["kind"] != "ConfigMap"]
    text = str(made)  # without the run's record, which has all settings by their names
    assert not re.search("affinity|toleration|topologySpread|runtimeClass|kueue", text)
