"""Check that manifests match the golden files, are valid and safe for hostile values, and can be patched by users."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from orch_node.pod.torchrun_rank import entry_of, environment
from orch_node.protocol import pod
from orch_node.protocol.layout import PRECISION_PLACEHOLDER, RankEntry
from orch_node.standalone import facts

from orchestrator.errors import PlanError
from orchestrator.model.project import Project
from orchestrator.planning.plan import Plan, as_yaml
from orchestrator.targets.kubernetes import names
from orchestrator.targets.kubernetes.manifests import KINDS, default_kind, shared_runtime
from orchestrator.targets.kubernetes.plan import patched
from orchestrator.targets.kubernetes.run_record import new_location
from orchestrator.targets.kubernetes.volume import reader_pod
from tests.conftest import make_stack
from tests.support.kubernetes_plans import (
    OWN_CONTENTS,
    OWN_SCRIPT,
    REQUEST,
    SETTINGS,
    SITE,
    config,
    containers,
    make_plan,
    objects,
    pod_specs,
)
from tests.support.kubernetes_schema import check_manifest, find_violations, has_crds
from tests.support.pages import ROOT, blocks
from tests.support.plans import BINDINGS, read_golden


def test_golden_manifests() -> None:
    for launcher in KINDS:
        text = make_plan(launcher).describe()
        assert text == read_golden(f"k8s/{launcher}.yaml", text)


def test_every_pod_is_admitted_in_a_restricted_namespace_and_gets_no_token() -> None:
    for launcher in KINDS:
        manifests = objects(make_plan(launcher))
        helper_pods = (reader_pod(new_location("r", launcher, SETTINGS), "r"), shared_runtime(SETTINGS))
        specs = [*pod_specs([*manifests, *helper_pods])]
        assert len(specs) >= 3
        assert [find_violations(spec) for spec in specs] == [[]] * len(specs)
        assert {spec.get("automountServiceAccountToken") for spec in specs} == {False}


def test_reader_pod_can_run_where_the_pods_of_the_run_can() -> None:
    """Give the reader pod the run's service account, tolerations and node affinity."""
    changes = {"service_account": "puller", "tolerations": ("spot:NoExecute",), "node_affinity": ("spot",)}
    full = SETTINGS.model_copy(update=changes)
    locations = [new_location("r", "job", settings) for settings in (SETTINGS, SETTINGS, full)]
    first, second, configured = (reader_pod(location, "r") for location in locations)
    toleration = {"key": "spot", "operator": "Exists", "effect": "NoExecute"}
    assert configured["spec"] == first["spec"] | {"serviceAccountName": "puller", "tolerations": [toleration]}
    assert first["metadata"]["name"] != second["metadata"]["name"], "a fetch that ends deletes its pod"


def test_restarts_are_elastic_and_bounded() -> None:
    request = replace(REQUEST, nodes=4, ppn=4, max_restarts=3, min_nodes=2)
    (_, job) = objects(make_plan(request=request))
    assert job["spec"]["nprocPerNode"] == "4"
    policy = job["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"], policy["maxRestarts"]) == (2, 4, 3)
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"
    assert job["spec"]["runPolicy"]["backoffLimit"] == 3


def test_users_files_are_sent_unless_they_are_too_large() -> None:
    plan = make_plan(recipe=OWN_SCRIPT, contents=OWN_CONTENTS, request=replace(REQUEST, script_args=("$(HOME)", "-n")))
    files, job = objects(plan)
    assert files["data"]["file-0"] == "print('hello')\n"
    items = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"][1]
    assert {"key": "file-0", "path": "files/0/own script.py"} in items["configMap"]["items"]
    assert containers(job)[0]["args"] == ["--", "/etc/orch/files/0/own script.py", "$$(HOME)", "-n"]

    binary = {OWN_SCRIPT.script: b"\xff\x00"}
    assert objects(make_plan(recipe=OWN_SCRIPT, contents=binary))[0]["binaryData"] == {"file-0": "/wA="}
    large = {OWN_SCRIPT.script: b"x" * 800_000}
    with pytest.raises(PlanError, match="700 kB can be sent") as caught:
        make_plan(recipe=OWN_SCRIPT, contents=large)
    assert "/orch/data" in caught.value.hint


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_texts_like_numbers_are_texts_for_kubectl() -> None:
    texts = ("1e-4", "08", "-_5e3", "0o17", ".5E2", "0X1F", "y", "N", "2:2", "-1", "yes", "null", "a\nb", "1e-4 x")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
    manifest = as_yaml(({**pod, "spec": {"containers": [{"name": "x", "args": list(texts)}]}},))
    command = ["kubectl", "label", "--local", "--filename=-", "x=x", "--output=json"]
    output = subprocess.run(command, input=manifest, capture_output=True, text=True, check=True).stdout
    assert containers(json.loads(output))[0]["args"] == list(texts)


def test_project_is_divided_into_config_maps_that_the_api_accepts() -> None:
    archive = bytes(range(256)) * 8000
    project = Project(folder="/home/me", files={"own script.py": "0" * 64}, size=1, directory="sub")
    plan = make_plan(recipe=replace(OWN_SCRIPT, project=project), project=archive)
    files, *parts, job = objects(plan)
    assert "file-0" not in files["data"]
    contents = [base64.b64decode(part["binaryData"]["part"]) for part in parts]
    assert b"".join(contents) == archive
    assert max(map(len, contents)) < 1 << 20
    sent = config(plan)["project"]
    assert sent["parts"] == [f"/etc/orch/project/{number}" for number in range(3)]
    assert sent["sha256"] == hashlib.sha256(archive).hexdigest()
    assert sent["working_directory"] == f"{sent['copy']}/sub"
    assert containers(job)[0]["args"] == ["--", f"{sent['copy']}/own script.py"]
    ((volume,),) = ([v for v in spec["volumes"] if v["name"] == "orch-files"] for spec in pod_specs(job))
    _, *sources = (source["configMap"]["name"] for source in volume["projected"]["sources"])
    assert sources == [part["metadata"]["name"] for part in parts]


def test_ccl_without_hydra_talks_over_libfabric() -> None:
    stack = replace(make_stack(), backends=("ccl", "gloo"), bindings=BINDINGS)
    for launcher in KINDS:
        environment = config(make_plan(launcher, stack=stack))["env"]
        assert environment["CCL_ATL_TRANSPORT"] == "ofi"
        assert environment["CCL_PROCESS_LAUNCHER"] == "none"


def test_pods_choose_the_precision_or_check_the_requested_one() -> None:
    plan = make_plan()
    assert config(plan)["precision"] == {
        "arguments": {"bf16": ["--bf16"], "fp32": []},
        "file": f"{plan.run.output_dir}/precision.txt",
    }
    assert PRECISION_PLACEHOLDER in containers(objects(plan)[1])[0]["args"]
    assert plan.run.precision == "auto"
    assert config(plan)["needs_bf16"] is False
    bf16 = replace(REQUEST, precision="bf16")
    requested = config(make_plan(request=bf16))
    assert (requested["precision"], requested["needs_bf16"]) == (None, True)
    assert config(make_plan(request=replace(bf16, allow_slow_bf16=True)))["needs_bf16"] is False, "it may be emulated"


LETTERS = st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t")
ARGUMENTS = st.lists(st.text(LETTERS, max_size=40), max_size=4)


# Shrinking is off because checking one object against a CRD takes 0.1 s.
@settings(max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@example(launcher="job", arguments=["$(A)", "\u2028"], nodes=5000, ppn=8, cpu="64", memory="64Gi", recipe="x" * 60)
@given(
    launcher=st.sampled_from(sorted(KINDS)),
    arguments=ARGUMENTS,
    nodes=st.integers(1, 5000),
    ppn=st.integers(1, 8),
    cpu=st.sampled_from(["8", "8500m", "64", "100"]),
    memory=st.sampled_from(["64Gi", "500M", "0.5Ti"]),
    recipe=st.text(max_size=60),
)
def test_objects_of_any_request_match_the_crds(
    launcher: str, arguments: list[str], nodes: int, ppn: int, cpu: str, memory: str, recipe: str
) -> None:
    run = names.run_id("20260101-120000", recipe, "ffff")
    request = replace(REQUEST, nodes=nodes, ppn=ppn, script_args=tuple(arguments))
    kubernetes = SETTINGS.model_copy(update={"cpu": cpu, "memory": memory})
    plan = make_plan(launcher, request=request, kubernetes=kubernetes, run_paths=replace(SITE, run_id=run))
    manifests = objects(plan)
    assert tuple(manifest for manifest in yaml.safe_load_all(plan.describe()) if manifest) == manifests
    args = next(container["args"] for container in containers(list(manifests)) if "args" in container)
    tail = args[len(args) - len(arguments) :]
    assert tail == [argument.replace("$", "$$") for argument in arguments], "Kubernetes turns $$ into $"
    if has_crds():
        for manifest in manifests[1:]:
            if manifest["kind"] != "Service":
                check_manifest(manifest)


def test_network_policy_of_the_docs_is_about_the_pods_of_runs() -> None:
    code_blocks = [block.text for block in blocks(ROOT / "docs" / "how-to" / "kubernetes.md")]
    (text,) = (block for block in code_blocks if "kind: NetworkPolicy" in block)
    policy = yaml.safe_load(text)["spec"]
    ((peer,),) = (rule["from"] for rule in policy["ingress"])
    for selector in (policy["podSelector"], peer["podSelector"]):
        assert selector["matchLabels"].items() <= names.labels("r").items()
    assert policy["policyTypes"] == ["Ingress"]
    pods = objects(make_plan("job"))[-1]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= pods.items()


def test_default_is_what_the_cluster_has() -> None:
    trainjob_and_pytorchjob = ("trainjob", "pytorchjob")
    for installed, min_nodes, kind, expected_reason in (
        (trainjob_and_pytorchjob, 0, "TrainJob", "torchrun; the cluster has it"),
        (trainjob_and_pytorchjob, 1, "PyTorchJob", "torchrun; the only kind that continues with fewer pods"),
        (("pytorchjob",), 0, "PyTorchJob", "torchrun; the cluster has no TrainJob"),
        (("job",), 0, "Job", "torchrun; the cluster has no TrainJob and no PyTorchJob"),
        ("no answer (x)", 0, "TrainJob", "torchrun; assumed: no answer (x)"),
    ):
        plan = make_plan(None, request=replace(REQUEST, max_restarts=1, min_nodes=min_nodes), installed=installed)
        (decision,) = [decision for decision in plan.run.decisions if decision.topic == "launcher"]
        assert (decision.value.partition(" ")[0], decision.reason) == (kind, expected_reason)
    with pytest.raises(PlanError, match=r"has no PyTorchJob\."):
        default_kind(("trainjob",), elastic=True)


def test_pods_request_gpus() -> None:
    resources = {"trainjob": "nvidia.com/gpu", "pytorchjob": "amd.com/gpu", "job": "gpu.intel.com/i915"}
    for launcher, resource in resources.items():
        settings = SETTINGS.model_copy(update={"gpu": 8, "gpu_resource": resource})
        plan = make_plan(launcher, request=replace(REQUEST, backend="nccl", ppn=None), kubernetes=settings)
        assert f'"{resource}": "8"' in json.dumps(objects(plan))
        decisions = [decision.value for decision in plan.decisions if decision.topic in ("ranks", "gpus")]
        assert decisions == [f"8 {resource} in each pod", "16"]


def place_ranks(plan: Plan, cpus: list[int], monkeypatch: pytest.MonkeyPatch) -> list[RankEntry]:
    """Return the entries of both ranks of the first pod, which has these CPUs."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    entries = []
    for local_rank in (0, 1):
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        entries.append(entry_of(pod.parse(json.dumps(config(plan))), "orch-x-worker-0", local_rank, cpus))
    return entries


def test_ranks_may_share_cores_if_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, ppn in (("500m", 1), ("1", 2)):
        request = replace(REQUEST, ppn=ppn)
        with pytest.raises(PlanError, match=f"--ppn {ppn}") as refused:
            make_plan(request=request, kubernetes=SETTINGS.model_copy(update={"cpu": cpu}))
        assert "share_cores=true" in refused.value.hint
        plan = make_plan(request=request, kubernetes=SETTINGS.model_copy(update={"cpu": cpu, "share_cores": True}))
        assert {placement.threads for placement in plan.layout.rank_places} == {1}
        worker = objects(plan)[1]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        assert worker["containers"][0]["resources"]["requests"]["cpu"] == cpu
    unpinned = [placement.cpus for placement in place_ranks(plan, [7], monkeypatch)]
    assert unpinned == [(), ()], "a pinned rank would keep the core from the others"


def test_ranks_with_exclusive_cpus_share_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    # The CPUs 0 and 4, 1 and 5, 2 and 6, 3 and 7 are hardware threads of one core.
    monkeypatch.setattr(facts, "topology", lambda cpu: {"cpu": cpu, "core": cpu % 4, "socket": 0, "numa": 0})
    placements = place_ranks(make_plan(), [*range(8)], monkeypatch)
    assert [(placement.cpus, placement.threads) for placement in placements] == [((0, 1), 2), ((2, 3), 2)]


def test_ranks_of_a_resumed_job_know_that_it_is_not_their_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """They compare their weights more strictly then."""
    monkeypatch.setenv("MASTER_ADDR", "orch-x-worker-0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert environment(pod.parse(json.dumps({**config(make_plan()), "attempt": 3})))["ORCH_ATTEMPT"] == "3"


def test_impossible_requests_and_settings_are_refused() -> None:
    for request, changes, problem in (
        ({"nodes": None}, {}, "needs a number of nodes"),
        ({"ppn": 9}, {}, "--ppn 9, but a pod has 8 CPUs"),
        ({}, {"image": ""}, "No image"),
        ({}, {"cpu": "4 CPUs"}, "cpu = '4 CPUs'"),
        ({"backend": "nccl", "ppn": None}, {}, "--backend nccl: the pods request no GPUs"),
        ({"backend": "nccl", "ppn": 4}, {"gpu": 2}, "--ppn 4, but each worker has 2 GPUs"),
    ):
        with pytest.raises(PlanError, match=re.escape(problem)):
            make_plan(request=replace(REQUEST, **request), kubernetes=SETTINGS.model_copy(update=changes))


POD = "/spec/template/spec"
JOB = objects(make_plan("job"))


def make_operation(op: str, path: str, value: Any = None, kind: str = "Job") -> dict[str, Any]:
    return {"kind": kind, "op": op, "path": path, **({} if value is None else {"value": value})}


def test_patches_are_applied_and_reported() -> None:
    operations = (
        make_operation("add", f"{POD}/hostNetwork", True),
        make_operation("replace", "/spec/backoffLimit", 7),
        make_operation("add", "/metadata/labels/team", "a"),
    )
    plan = make_plan("job", patch=operations)
    job = objects(plan)[-1]
    assert job["spec"]["template"]["spec"]["hostNetwork"] is True
    assert job["spec"]["backoffLimit"] == 7
    assert job["metadata"]["labels"]["team"] == "a"
    descriptions = [decision.value for decision in plan.run.decisions if decision.topic == "patch"]
    assert descriptions[0] == f"add {POD}/hostNetwork of Job"
    assert len(descriptions) == len(operations)
    assert objects(make_plan("job")) == JOB


def test_patch_that_cannot_be_applied_or_hides_an_object_is_refused() -> None:
    for operation, problem in (
        (make_operation("remove", f"{POD}/hostNetwork"), "can't remove a non-existent object"),
        (make_operation("replace", "/spec/x", 1, kind="Pod"), "this run has ConfigMap, Service, Job"),
        (make_operation("frobnicate", "/spec", 1), "frobnicate /spec of Job"),
        (make_operation("replace", "/metadata/name", "x"), "changes the name or the labels"),
        (make_operation("replace", "/metadata/labels/orch~1run", "x"), "changes the name or the labels"),
        (make_operation("replace", "", 3), "replace  of Job"),
    ):
        with pytest.raises(PlanError, match=re.escape(problem)):
            patched(JOB, [operation])
