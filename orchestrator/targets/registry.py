"""List all targets, and find the one of a request or a run. Each is imported only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, RequestError, did_you_mean
from orchestrator.targets.interface import Target


def ssh() -> Target:
    from orchestrator.targets.ssh.target import SshTarget

    return SshTarget()


def kubernetes() -> Target:
    from orchestrator.targets.kubernetes.target import KubernetesTarget

    return KubernetesTarget()


def slurm() -> Target:
    from orchestrator.targets.slurm.target import SlurmTarget

    return SlurmTarget()


NODES = "ssh"  # the default
TARGETS: Mapping[str, Callable[[], Target]] = {NODES: ssh, "kubernetes": kubernetes, "slurm": slurm}
# The targets without an inventory, by their names in `--on` and `--inventory` (`k8s`, `k8s:NAMESPACE`).
ON_VALUES = {"k8s": "kubernetes", "slurm": "slurm"}


def find_target(value: str | None) -> Target:
    """Return the target that `--on` names, or the default target.

    Raises:
        RequestError: if there is no target of this name.
    """
    name = NODES if value is None else ON_VALUES.get(value, value)
    if name not in TARGETS:
        raise RequestError(
            f"--on {value}: orch runs on {', '.join(ON_VALUES)}, or on the nodes of --inventory.",
            hint=did_you_mean(str(value), ON_VALUES),
        )
    return TARGETS[name]()


def target_of(record: RunRecord) -> Target:
    """Return the target of a recorded run.

    Raises:
        ExecuteError: if this version of orch does not have that target.
    """
    if record.target not in TARGETS:
        raise ExecuteError(
            f"{record.run_id} runs on {record.target}, which this version of orch does not know.",
            hint="Use the version that has started it, or a newer one.",
        )
    return TARGETS[record.target]()


def target_at(inventory: str | None) -> Target:
    """Return the target that a value of `--inventory` refers to."""
    prefix = (inventory or "").partition(":")[0]
    return TARGETS[ON_VALUES.get(prefix, NODES)]()
