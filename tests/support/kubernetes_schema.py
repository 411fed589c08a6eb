"""Check manifests against CRDs, without unknown fields, and against the Pod Security profile `restricted`."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.files import cache_home

CRD_FILES = {
    "PyTorchJob": "kubeflow.org_pytorchjobs.yaml",
    "TrainJob": "trainer.kubeflow.org_trainjobs.yaml",
    "TrainingRuntime": "trainer.kubeflow.org_trainingruntimes.yaml",
}
ALLOWED_VOLUMES = "configMap csi downwardAPI emptyDir ephemeral persistentVolumeClaim projected secret"


def find_crds() -> Path:
    """Return the folder of Kubeflow's CRDs, which are not part of this repository.

    The folder is ORCH_CRDS, otherwise `../shared/data/crds` if that exists, otherwise `crds` in the cache.
    """
    if folder := os.environ.get("ORCH_CRDS"):
        return Path(folder).absolute()
    sibling = Path(__file__).parents[3] / "shared" / "data" / "crds"
    return sibling if sibling.is_dir() else (cache_home() / "crds").absolute()


CRDS = find_crds()


def has_crds() -> bool:
    """Return whether the folder has all CRDs."""
    return all((CRDS / name).is_file() for name in CRD_FILES.values())


needs_crds = pytest.mark.skipif(
    not has_crds(), reason=f"needs ORCH_CRDS, or Kubeflow's CRDs in {CRDS}: NO manifest is checked"
)


@cache
def make_validator(kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(make_strict(read_schema(kind)))


def read_schema(kind: str) -> Any:
    """Return the schema of a kind from its CRD; that of a Job, which has none, is part of TrainingRuntime's."""
    if kind == "Job":
        job_set = read_schema("TrainingRuntime")["properties"]["spec"]["properties"]["template"]
        jobs = job_set["properties"]["spec"]["properties"]["replicatedJobs"]
        spec = jobs["items"]["properties"]["template"]["properties"]["spec"]
        properties = {"apiVersion": {"const": "batch/v1"}, "kind": {"type": "string"}, "spec": spec}
        return {"type": "object", "properties": properties | {"metadata": {"type": "object"}}}
    crd = yaml.load((CRDS / CRD_FILES[kind]).read_text(), yaml.CSafeLoader)
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def make_strict(schema: Any) -> Any:
    """Return an OpenAPI schema as a JSON schema that allows no unknown fields."""
    if isinstance(schema, list):
        return [make_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        key: {name: make_strict(child) for name, child in value.items()} if key == "properties" else make_strict(value)
        for key, value in schema.items()
        if not key.startswith("x-kubernetes") and key not in ("description", "format", "default")
    }
    if "properties" in result and "additionalProperties" not in result:
        result["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("anyOf", None)
        result["type"] = ["integer", "string"]
    return result


def check_manifest(manifest: dict[str, Any]) -> None:
    """Check a manifest against its CRD.

    Raises:
        AssertionError: lists all violations.
    """
    body = {key: value for key, value in manifest.items() if key != "metadata"}
    errors = [f"{error.json_path}: {error.message}" for error in make_validator(manifest["kind"]).iter_errors(body)]
    assert not errors, "\n".join(errors)


def find_violations(pod: dict[str, Any]) -> list[str]:
    """Return the fields of a pod's spec that the Pod Security profile `restricted` does not allow."""
    violations = [
        f"volume {volume['name']}"
        for volume in pod.get("volumes", ())
        if not {*ALLOWED_VOLUMES.split()} & volume.keys()
    ]
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        context = {**(pod.get("securityContext") or {}), **(container.get("securityContext") or {})}
        is_allowed = {
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "capabilities": context.get("capabilities") == {"drop": ["ALL"]},
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "seccompProfile": context.get("seccompProfile") == {"type": "RuntimeDefault"},
        }
        violations += [f"{container['name']}: {name}" for name, allowed in is_allowed.items() if not allowed]
    return violations
