"""Check how settings for nodes, volumes, variables and queues appear in each kind of job, and that names are valid."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import PlanError
from orchestrator.targets.kubernetes import names
from orchestrator.targets.kubernetes.inputs import kubernetes_settings
from orchestrator.targets.kubernetes.manifests import KINDS
from tests.support.kubernetes_plans import OWN_CONTENTS, OWN_SCRIPT, SITE, containers, make_plan, objects, pod_specs
from tests.support.kubernetes_schema import check_manifest, needs_crds

ASSIGNMENTS = (
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


def make_settings(*assignments: str) -> Any:
    return kubernetes_settings(None, ["cpu=8", "namespace=team", *assignments], "registry.example/orch:current")


def test_every_kind_of_job_has_the_requested_settings() -> None:
    for launcher in KINDS:
        manifests = objects(make_plan(launcher, kubernetes=make_settings(*ASSIGNMENTS)))
        assert manifests[-1]["metadata"]["labels"][names.QUEUE] == "team-a"
        specs = list(pod_specs(list(manifests)))
        assert specs
        for pod in specs:
            assert pod["runtimeClassName"] == "kata"
            assert pod["tolerations"] == [
                {"key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"},
                {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
            ]
            (constraint,) = pod["topologySpreadConstraints"]
            assert constraint["topologyKey"] == "kubernetes.io/hostname"
            assert constraint["labelSelector"]["matchLabels"] == names.labels(SITE.run_id)
            affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            (term,) = affinity["nodeSelectorTerms"]
            zone, spot = term["matchExpressions"]
            assert (zone["operator"], zone["values"]) == ("In", ["a", "b"])
            assert spot == {"key": "spot", "operator": "DoesNotExist"}
            mounted = {volume_mount["mountPath"]: volume_mount for volume_mount in pod["containers"][0]["volumeMounts"]}
            assert mounted["/data"]["readOnly"]
            assert mounted["/certs"]["readOnly"]
        for container in containers(list(manifests)):
            variables = {variable["name"]: variable for variable in container["env"]}
            assert variables["NAME"]["value"] == "a $$(HOME)"
            assert variables["WANDB_API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "wandb", "key": "key"}


@needs_crds
def test_manifests_with_all_settings_match_the_crds() -> None:
    settings = make_settings(
        *ASSIGNMENTS[2:],
        "pack=topology.kubernetes.io/rack",
        "pull_secrets=registry",
        "service_account=trainer",
        "priority_class=low",
        "node_selector.feature.node.kubernetes.io/cpu-cpuid.AVX512BF16=true",
    )
    for launcher in KINDS:
        plan = make_plan(launcher, kubernetes=settings, recipe=OWN_SCRIPT, contents=OWN_CONTENTS)
        config_map, *manifests = objects(plan)
        assert config_map["kind"] == "ConfigMap"
        for manifest in manifests:
            if manifest["kind"] != "Service":
                check_manifest(manifest)


def test_invalid_settings_of_pods_are_refused() -> None:
    for assignments, problem in (
        (("env.HF_TOKEN=hf_x",), "env: HF_TOKEN would show a secret"),
        (("env.WANDB_API_KEY=x",), "would show a secret"),
        (("env.OMP_NUM_THREADS=3",), "OMP_NUM_THREADS: set by orch itself"),
        (("secret_env.PET_NNODES=a/b",), "PET_NNODES: set by orch itself"),
        (("secret_env.A=nokey",), "secret_env: 'nokey' is not valid"),
        (("tolerations=a:Never",), "tolerations: 'a:Never' is not valid"),
        (("node_affinity=a in b",), "node_affinity: 'a in b' is not valid"),
        (("volumes=host:a:/b",), "volumes: 'host:a:/b' is not valid"),
    ):
        with pytest.raises(PlanError, match=re.escape(problem)):
            make_plan("job", kubernetes=make_settings(*assignments))


def test_packed_pods_have_an_affinity_to_each_other() -> None:
    (pod,) = pod_specs(list(objects(make_plan("job", kubernetes=make_settings("pack=topology.kubernetes.io/rack")))))
    (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "topology.kubernetes.io/rack"


@given(st.text(max_size=80), st.text(max_size=80))
def test_run_ids_and_job_names_are_names(recipe: str, another_recipe: str) -> None:
    run = names.run_id("20260101-120000", recipe, "ab12")
    assert names.is_subdomain(run)
    assert len(run) <= names.LABEL_MAX
    job = names.job_name(run)
    assert names.is_dns_label(f"{job}-launcher")
    assert names.is_dns_label(f"{job}-node-0-4999-abcde")
    assert names.is_subdomain(f"{job}-files")
    assert names.job_name(names.run_id("20260101-120000", another_recipe, "ab13")) != job
