"""List all targets, and find the one of a request or a run. Each is imported only when it is used."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from orch_node.protocol.record import DEFAULT_TARGET

from orchestrator.errors import ExecuteError, RequestError, did_you_mean
from orchestrator.files import entry_points
from orchestrator.planning.request import TrainRequest
from orchestrator.targets.entry import OPTION, TargetEntry

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from orch_node.protocol.record import RunRecord

    from orchestrator.targets.interface import Target

HINT = "Correct the package, or uninstall it; docs/how-to/own-targets.md describes targets."
GROUP = "orch.targets"  # entry points of other packages, each the name of a TargetEntry
SSH_TARGET = "orchestrator.targets.ssh.target:SshTarget"
INCLUDED = {
    "k8s": "orchestrator.targets.kubernetes.options:ENTRY",
    "pbs": "orchestrator.targets.batch.options:PBS",
    "slurm": "orchestrator.targets.batch.options:SLURM",
}


@cache
def entries() -> Mapping[str, TargetEntry]:
    """Return the targets by their value of --on, without those of packages that cannot be used."""
    targets: dict[str, TargetEntry] = {name: pkgutil.resolve_name(value) for name, value in INCLUDED.items()}
    for point in sorted(entry_points().select(group=GROUP)):
        with contextlib.suppress(RequestError):
            targets[point.name] = load_entry(point, targets)
    return targets


def load_entry(point: EntryPoint, entries: Mapping[str, TargetEntry]) -> TargetEntry:
    """Return the target of a package in addition to these entries.

    Raises:
        RequestError: if it cannot be used.
    """
    entry = resolve(point.name, point.value, lambda entry: entry)
    if fault := fault_of(entry, point.name, entries):
        raise RequestError(f"--on {point.name}: {point.value} {fault}.", hint=HINT)
    return cast("TargetEntry", entry)


def resolve(name: str, path: str, make: Callable[[Any], object]) -> object:
    """Return what is made of an object of another package, which may raise anything; raise RequestError if it does."""
    try:
        return make(pkgutil.resolve_name(path))
    except Exception as error:
        raise RequestError(f"--on {name}: {path}: {type(error).__name__}: {error}.", hint=HINT) from None


def fault_of(entry: object, name: str, entries: Mapping[str, TargetEntry]) -> str:
    """Return why an entry cannot be used under a name in addition to these entries; empty if it can."""
    if (
        not isinstance(entry, TargetEntry)
        or not is_dataclass(entry.options)
        or getattr(entry.options, "on", None) != name
    ):
        return f"is not a TargetEntry whose options are a dataclass with on = {name!r}"
    if name in entries or entry.name in (DEFAULT_TARGET, *(target.name for target in entries.values())):
        return "has the name of another target"
    used_names = {field.name for target in entries.values() for field in fields(target.options)}
    used_names |= {field.name for field in fields(TrainRequest)}
    if conflicts := {field.name for field in fields(entry.options)} & used_names:
        return f"has options whose names are in use already: {', '.join(sorted(conflicts))}"
    if invalid_names := [field.name for field in fields(entry.options) if OPTION not in field.metadata]:
        return f"has options that are not made by option(): {', '.join(invalid_names)}"
    return ""


def create(entry: TargetEntry | None) -> Target:
    """Return the target of an entry; None stands for the default target.

    Raises:
        RequestError: if the target of a package cannot be imported, or is no `Target`.
    """
    if entry is None or entry.options.on in INCLUDED:
        return pkgutil.resolve_name(entry.target if entry else SSH_TARGET)()  # type: ignore[no-any-return]
    from orchestrator.targets.interface import Target

    name, path = entry.options.on, entry.target
    target = resolve(name, path, lambda kind: kind())
    if not isinstance(target, Target):
        raise RequestError(f"--on {name}: {path} is not a subclass of Target.", hint=HINT)
    if unknown_fields := ", ".join(sorted(target.refuses.keys() - {field.name for field in fields(TrainRequest)})):
        raise RequestError.about("fields-of-target", name=name, path=path, fields=unknown_fields, advice=HINT)
    return target


def find_target(value: str | None) -> Target:
    """Return the target that `--on` names, or the default target.

    Raises:
        RequestError: if there is no such target, or it cannot be used.
    """
    targets = entries()
    if value is not None and value not in targets:
        for point in entry_points().select(group=GROUP, name=value):
            load_entry(point, targets)  # raises an error with the reason
        suggestion = did_you_mean(value, targets)
        raise RequestError.about("unknown-target", name=value, names=", ".join(targets), suggestion=suggestion)
    return create(targets.get(value or ""))


def target_of(record: RunRecord) -> Target:
    """Return the target of a recorded run.

    Raises:
        ExecuteError: if this installation of orch does not have that target.
    """
    by_name = {DEFAULT_TARGET: None, **{entry.name: entry for entry in entries().values()}}
    if record.target not in by_name:
        raise ExecuteError.about("target-of-run", record=record)
    return create(by_name[record.target])


def target_at(inventory: str | None) -> Target:
    """Return the target that a value of `--inventory` refers to, such as `slurm` or `k8s:NAMESPACE`."""
    return create(entries().get((inventory or "").partition(":")[0]))
