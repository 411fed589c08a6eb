"""List all targets, and find the one of a request or a run. Each is imported only when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from orchestrator.errors import ExecuteError, RequestError, did_you_mean
from orchestrator.paths import entry_points
from orchestrator.targets.entry import TargetEntry

if TYPE_CHECKING:
    from orch_node.protocol.record import RunRecord

    from orchestrator.targets.interface import Target

GROUP = "orch.targets"  # entry points of other packages, each the name of a TargetEntry
SSH = "ssh"  # the default, which --on does not name
SSH_TARGET = "orchestrator.targets.ssh.target:SshTarget"
INCLUDED = {
    "k8s": "orchestrator.targets.kubernetes.options:ENTRY",
    "pbs": "orchestrator.targets.batch.options:PBS",
    "slurm": "orchestrator.targets.batch.options:SLURM",
}


@cache
def loaded() -> tuple[Mapping[str, TargetEntry], Mapping[str, str]]:
    """Return the targets by their value of --on, and why others cannot be used."""
    points = [(name, value, "orch") for name, value in INCLUDED.items()]
    for point in sorted(entry_points().select(group=GROUP)):
        points.append((point.name, point.value, point.dist.name if point.dist else "?"))
    entries: dict[str, TargetEntry] = {}
    broken: dict[str, str] = {}
    for name, value, package in points:
        try:
            entry = load_object(value)
        except Exception as error:  # of another package, which may raise anything
            broken[name] = f"the target of package {package} cannot be imported: {type(error).__name__}: {error}"
            continue
        if not isinstance(entry, TargetEntry) or entry.options.on != name:
            broken[name] = f"{value} of package {package} is not a TargetEntry whose options have on = {name!r}"
        elif name in entries or entry.name in (SSH, *(valid_entry.name for valid_entry in entries.values())):
            broken[name] = f"package {package} has a target of the same name as another one"
        else:
            entries[name] = entry
    return entries, broken


def entries() -> Mapping[str, TargetEntry]:
    """Return the targets that --on can name."""
    return loaded()[0]


def load_object(value: str) -> object:
    """Return the object that `package.module:name` refers to."""
    module, _, name = value.partition(":")
    return getattr(importlib.import_module(module), name)


def create(entry: TargetEntry | None) -> Target:
    """Return the target of an entry; None stands for the default target."""
    target: Target = load_object(entry.target if entry else SSH_TARGET)()  # type: ignore[operator]
    return target


def find_target(value: str | None) -> Target:
    """Return the target that `--on` names, or the default target.

    Raises:
        RequestError: if there is no target of this name.
    """
    if value is None:
        return create(None)
    entries, broken = loaded()
    if value in broken and value not in entries:
        raise RequestError(f"--on {value}: {broken[value]}.", hint="Install another version of the package.")
    if value not in entries:
        raise RequestError(
            f"--on {value}: orch runs on {', '.join(entries)}, or on the nodes of --inventory.",
            hint=did_you_mean(value, entries),
        )
    return create(entries[value])


def target_of(record: RunRecord) -> Target:
    """Return the target of a recorded run.

    Raises:
        ExecuteError: if this installation of orch does not have that target.
    """
    by_name = {SSH: None, **{entry.name: entry for entry in entries().values()}}
    if record.target not in by_name:
        raise ExecuteError(
            f"{record.run_id} runs on {record.target}, which this installation of orch does not know.",
            hint="Use the installation that has started it, with the same packages.",
        )
    return create(by_name[record.target])


def target_at(inventory: str | None) -> Target:
    """Return the target that a value of `--inventory` refers to, such as `slurm` or `k8s:NAMESPACE`."""
    return create(entries().get((inventory or "").partition(":")[0]))
