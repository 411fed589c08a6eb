"""`--k8s-patch FILE`: a user's own changes to a run's objects, by JSON Patch (RFC 6902). Pure.

The file is a list of operations, each with the `kind` of the object that it changes. A path that is
not there is an error, as the RFC has it; so is a change of what orch needs to follow the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import PlanError
from orchestrator.model.decision import Decision
from orchestrator.planning.manifest import Object

Operation = Mapping[str, Any]
# How orch finds a run's objects and reads what its pods say.
OURS = ("apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.labels")
OF_CONTAINERS = ("command", "args")
# What says how many pods and ranks there are, and how they find each other.
WHOLE = (
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
HINT = "Settings (--k8s KEY=VALUE) change what orch has to know of."


def patched(objects: tuple[Object, ...], operations: Sequence[Operation]) -> tuple[Object, ...]:
    """The objects as the user wants them. Raises PlanError."""
    found = list(objects)
    kinds = [one["kind"] for one in objects]
    for operation in operations:
        kind = str(operation.get("kind"))
        if kind == "ConfigMap" or kind not in kinds:
            others = ", ".join(one for one in kinds if one != "ConfigMap")
            raise PlanError(
                f"--k8s-patch: kind {kind}: this run has {others}.",
                hint="One of these is `kind` in each operation of the file.",
            )
        at = kinds.index(kind)
        found[at] = changed(found[at], {k: v for k, v in operation.items() if k != "kind"})
    return tuple(found)


def tell_patch(operations: Sequence[Operation]) -> tuple[Decision, ...]:
    """No manifest is other than orch makes it without a word."""
    return tuple(
        Decision(topic="patch", value=f"{one.get('op')} {one.get('path')} of {one.get('kind')}", reason="--k8s-patch")
        for one in operations
    )


def changed(before: Object, operation: Operation) -> Object:
    try:
        import jsonpatch
        import jsonpointer
    except ImportError:
        raise PlanError(
            "--k8s-patch needs the package `jsonpatch`, which is not installed.",
            hint="pip install 'jsonpatch>=1.33,<2'",
        ) from None
    where = f"{operation.get('op')} {operation.get('path')} of {before['kind']}"
    try:
        after: Object = jsonpatch.apply_patch(before, [operation])
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise PlanError(
            f"--k8s-patch: {where}: {error}.",
            hint="`--dry-run -o yaml` shows the objects; `add` makes what is not there.",
        ) from None
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise PlanError(
            f"--k8s-patch: {where} is no operation: {error}.",
            hint="- {kind: Job, op: add, path: /spec/template/spec/hostNetwork, value: true}",
        ) from None
    if not isinstance(after, dict) or (lost := needed(before) - needed(after)):
        names = ", ".join(sorted(path for path, _ in lost)) if isinstance(after, dict) else "all"
        raise PlanError(f"--k8s-patch: {where} changes {names}, which orch needs.", hint=HINT)
    return after


def needed(made: Any, path: str = "") -> set[tuple[str, str]]:
    """(path, value) of what must stay; more than that may come."""
    found: set[tuple[str, str]] = set()
    if isinstance(made, list):
        for one in made:
            name = one.get("name", "") if isinstance(one, dict) else ""
            found |= needed(one, f"{path}[{name}]")
    elif isinstance(made, dict):
        for key, value in made.items():
            found |= kept(value, f"{path}.{key}".lstrip("."))
    return found


def kept(value: Any, path: str) -> set[tuple[str, str]]:
    """Of one field: the whole of it, its parts, or what is below."""
    last = path.rpartition(".")[2]
    if path.endswith("metadata.labels") and isinstance(value, dict):
        return {(f"{path}[{name}]", str(text)) for name, text in value.items()}
    in_containers = last in OF_CONTAINERS and "containers[" in path
    if path in OURS or in_containers or last in WHOLE:
        return {(path, str(value))}
    if last in ("env", "volumes", "volumeMounts", "containers") and isinstance(value, list):
        return ours_of(value, path)
    return needed(value, path)


def ours_of(value: list[Any], path: str) -> set[tuple[str, str]]:
    """Entries by their name, wherever they stand: volumes, mounts and variables that orch made."""
    found: set[tuple[str, str]] = set()
    for one in value:
        name = one.get("name", "") if isinstance(one, dict) else ""
        if path.endswith("containers"):
            found |= {(f"{path}[{name}]", "")} | needed(one, f"{path}[{name}]")
        elif name.startswith(("orch-", "PET_", "ORCH_")):
            found.add((f"{path}[{name}]", str(one)))
    return found
