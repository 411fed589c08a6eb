"""CRDs as JSON schemas that know no field they do not name, as the API server's strict mode."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.state import cache_home

# Kubeflow's CRDs are not part of this repository. CI, too, uses those in the cache.
CRDS = Path(os.environ.get("ORCH_CRDS") or cache_home() / "crds").absolute()
CRD_FILES = {
    "PyTorchJob": "kubeflow.org_pytorchjobs.yaml",
    "MPIJob": "kubeflow.org_mpijobs.yaml",
    "TrainJob": "trainer.kubeflow.org_trainjobs.yaml",
    "TrainingRuntime": "trainer.kubeflow.org_trainingruntimes.yaml",
}


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
    """A plain Job has no CRD; a TrainingRuntime's spells its spec out."""
    if kind == "Job":
        replicated = read_schema("TrainingRuntime")["properties"]["spec"]["properties"]["template"]
        jobs = replicated["properties"]["spec"]["properties"]["replicatedJobs"]
        spec = jobs["items"]["properties"]["template"]["properties"]["spec"]
        own = {"apiVersion": {"const": "batch/v1"}, "kind": {"type": "string"}, "spec": spec}
        return {"type": "object", "properties": own | {"metadata": {"type": "object"}}}
    crd = yaml.load((CRDS / CRD_FILES[kind]).read_text(), yaml.CSafeLoader)
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def make_strict(schema: Any) -> Any:
    """Unknown fields are errors; the extensions of OpenAPI become JSON schema."""
    if isinstance(schema, list):
        return [make_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: {name: make_strict(one) for name, one in value.items()} if key == "properties" else make_strict(value)
        for key, value in schema.items()
        if not key.startswith("x-kubernetes") and key not in ("description", "format", "default")
    }
    if "properties" in found and "additionalProperties" not in found:
        found["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("anyOf", None)
        found["type"] = ["integer", "string"]
    return found


def check_manifest(made: dict[str, Any]) -> None:
    """Raises AssertionError that lists every place where the object is not as its CRD says."""
    body = {key: value for key, value in made.items() if key != "metadata"}
    errors = [f"{error.json_path}: {error.message}" for error in make_validator(made["kind"]).iter_errors(body)]
    assert not errors, "\n".join(errors)
