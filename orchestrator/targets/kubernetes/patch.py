"""Apply a user's JSON Patch (RFC 6902) to the objects of a run (`--k8s-patch FILE`).

The file is a list of operations, each with the `kind` of the object that it changes. The API of the cluster checks
the changed objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import PlanError
from orchestrator.model.decision import Decision
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import names

Operation = Mapping[str, Any]


def patched(objects: tuple[Object, ...], operations: Sequence[Operation]) -> tuple[Object, ...]:
    """Return the objects with the operations applied.

    Raises:
        PlanError: if an operation cannot be applied, or changes how orch finds an object.
    """
    result = list(objects)
    kinds = [item["kind"] for item in objects]
    for operation in operations:
        kind = str(operation.get("kind"))
        if kind not in kinds:
            raise PlanError(
                f"--k8s-patch: kind {kind} cannot be changed: this run has {', '.join(kinds)}.",
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
        is_found = identity(after) == identity(before)
    except (
        *(jsonpatch.JsonPatchException, jsonpointer.JsonPointerException),
        *(TypeError, ValueError, KeyError, AttributeError, IndexError),
    ) as error:
        raise PlanError(
            f"--k8s-patch: {description}: {error}.",
            hint="`--dry-run -o yaml` shows the objects. Use `add` for missing fields. Example: "
            "- {kind: Job, op: add, path: /spec/template/spec/hostNetwork, value: true}",
        ) from None
    if not is_found:
        raise PlanError(
            f"--k8s-patch: {description} changes the name or the labels by which orch finds the object.",
            hint="Leave this operation out.",
        )
    return after


def identity(item: Object) -> tuple[Any, ...]:
    """Return the fields by which orch finds an object again, to follow and to delete it."""
    metadata = item["metadata"]
    labels = (metadata["labels"][key] for key in (names.OWNER, names.RUN))
    return item["apiVersion"], item["kind"], metadata["name"], metadata.get("namespace"), *labels
