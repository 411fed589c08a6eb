"""Apply a user's JSON Patch (RFC 6902) to the objects of a run (`--k8s-patch FILE`).

The file is a list of operations, each with the `kind` of the object that it changes. A missing path
is an error, as in the RFC, and so is a change of fields that orch needs to watch the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import PlanError
from orchestrator.model.decision import Decision
from orchestrator.planning.manifest import Object

Operation = Mapping[str, Any]
# Fields by which orch finds a run's objects.
REQUIRED_PATHS = ("apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.labels")
CONTAINER_FIELDS = ("command", "args")
# Fields that set the numbers of pods and ranks, and how they find each other.
REQUIRED_FIELDS = (
    "completionMode",
    "completions",
    "parallelism",
    "subdomain",
    "replicas",
    "nprocPerNode",
    "slotsPerWorker",
    "numNodes",
    "numProcPerNode",
    "runtimeRef",
    "clusterIP",
    "selector",
)
HINT = "Use settings (--k8s KEY=VALUE) to change these fields."


def patched(objects: tuple[Object, ...], operations: Sequence[Operation]) -> tuple[Object, ...]:
    """Return the objects with the operations applied.

    Raises:
        PlanError: if an operation is malformed or changes a field that orch needs.
    """
    result = list(objects)
    kinds = [item["kind"] for item in objects]
    for operation in operations:
        kind = str(operation.get("kind"))
        if kind == "ConfigMap" or kind not in kinds:
            allowed = ", ".join(name for name in kinds if name != "ConfigMap")
            raise PlanError(
                f"--k8s-patch: kind {kind} cannot be changed: this run has {allowed}.",
                hint="Set `kind` to one of these in each operation of the file.",
            )
        index = kinds.index(kind)
        result[index] = apply_operation(result[index], {k: v for k, v in operation.items() if k != "kind"})
    return tuple(result)


def describe_patch(operations: Sequence[Operation]) -> tuple[Decision, ...]:
    """Return a decision for each change of an object."""
    return tuple(
        Decision(
            topic="patch",
            value=f"{operation.get('op')} {operation.get('path')} of {operation.get('kind')}",
            reason="--k8s-patch",
        )
        for operation in operations
    )


def apply_operation(before: Object, operation: Operation) -> Object:
    try:
        import jsonpatch
        import jsonpointer
    except ImportError:
        raise PlanError(
            "--k8s-patch needs the package `jsonpatch`, which is not installed.",
            hint="pip install 'jsonpatch>=1.33,<2'",
        ) from None
    description = f"{operation.get('op')} {operation.get('path')} of {before['kind']}"
    try:
        after: Object = jsonpatch.apply_patch(before, [operation])
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise PlanError(
            f"--k8s-patch: {description}: {error}.",
            hint="`--dry-run -o yaml` shows the objects. Use `add` for missing fields.",
        ) from None
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise PlanError(
            f"--k8s-patch: {description} is not a valid operation: {error}.",
            hint="- {kind: Job, op: add, path: /spec/template/spec/hostNetwork, value: true}",
        ) from None
    if not isinstance(after, dict) or (lost := required_values(before) - required_values(after)):
        names = ", ".join(sorted(path for path, _ in lost)) if isinstance(after, dict) else "all"
        raise PlanError(f"--k8s-patch: {description} changes {names}, which orch needs.", hint=HINT)
    return after


def required_values(value: Any, path: str = "") -> set[tuple[str, str]]:
    """Return the path and the value of each field that must not change."""
    result: set[tuple[str, str]] = set()
    if isinstance(value, list):
        for item in value:
            name = item.get("name", "") if isinstance(item, dict) else ""
            result |= required_values(item, f"{path}[{name}]")
    elif isinstance(value, dict):
        for key, field in value.items():
            result |= required_in_field(field, f"{path}.{key}".lstrip("."))
    return result


def required_in_field(value: Any, path: str) -> set[tuple[str, str]]:
    """Return what must not change in a field: the whole field, some entries, or nested fields."""
    last = path.rpartition(".")[2]
    if path.endswith("metadata.labels") and isinstance(value, dict):
        return {(f"{path}[{name}]", str(text)) for name, text in value.items()}
    in_containers = last in CONTAINER_FIELDS and "containers[" in path
    if path in REQUIRED_PATHS or in_containers or last in REQUIRED_FIELDS:
        return {(path, str(value))}
    if last in ("env", "volumes", "volumeMounts", "containers") and isinstance(value, list):
        return required_entries(value, path)
    return required_values(value, path)


def required_entries(entries: list[Any], path: str) -> set[tuple[str, str]]:
    """Return the volumes, mounts and variables that orch has added, by their names."""
    result: set[tuple[str, str]] = set()
    for entry in entries:
        name = entry.get("name", "") if isinstance(entry, dict) else ""
        if path.endswith("containers"):
            result |= {(f"{path}[{name}]", "")} | required_values(entry, f"{path}[{name}]")
        elif name.startswith(("orch-", "PET_", "ORCH_")):
            result.add((f"{path}[{name}]", str(entry)))
    return result
