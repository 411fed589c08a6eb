"""List the rights that orch needs in a namespace.

`orch k8s check` checks this table, and `orch k8s role` prints it as a Role.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, Kind
from orchestrator.targets.kubernetes.settings import KubernetesSettings

Right = tuple[str, str, str, str]  # verb, API group, resource, what for
# For every run. Server-side apply creates objects with `patch`.
RIGHTS: tuple[Right, ...] = (
    ("create", "", "configmaps", "the run's files"),
    ("patch", "", "configmaps", "the run's files"),
    ("list", "", "configmaps", "orch runs --inventory k8s"),
    ("delete", "", "configmaps", "orch stop"),
    ("get", "", "pods", "orch fetch"),
    ("list", "", "pods", "watching a run"),
    ("watch", "", "pods", "watching a run"),
    ("get", "", "pods/log", "logs and progress"),
    ("list", "", "events", "why a pod waits"),
    ("create", "", "pods", "orch fetch"),
    ("patch", "", "pods", "orch fetch"),
    ("delete", "", "pods", "orch fetch"),
    ("create", "", "pods/exec", "orch fetch"),
    ("get", "", "pods/exec", "orch fetch"),
    ("get", "", "persistentvolumeclaims", "orch k8s check"),
)
# For `orch k8s init --apply`, which an administrator may run instead.
INIT_RIGHTS: tuple[Right, ...] = tuple(
    (verb, "", resource, "orch k8s init --apply")
    for resource in ("persistentvolumeclaims", "secrets")
    for verb in ("create", "patch")
)
# Required with `queue`, to explain why a job is suspended.
KUEUE_RIGHTS: tuple[Right, ...] = (
    ("list", "kueue.x-k8s.io", "workloads", "why a job is suspended"),
    ("get", "kueue.x-k8s.io", "localqueues", "whether the queue exists"),
    ("list", "kueue.x-k8s.io", "localqueues", "which queues there are"),
)
# Without them, `orch k8s check` reports less.
OPTIONAL_RIGHTS: tuple[Right, ...] = (("list", "", "resourcequotas", "orch k8s check"),)
SERVICE_VERBS = ("create", "patch", "list", "delete")
JOB_VERBS = ("create", "patch", "get", "list", "delete")


def rights_for(kind: Kind) -> tuple[Right, ...]:
    """Return the rights that runs of a kind need besides RIGHTS."""
    job_rights = tuple((verb, kind.group, kind.plural, f"a {kind.kind}") for verb in JOB_VERBS)
    if kind.launcher == "job":
        services = ((verb, "", "services", "names of its pods") for verb in SERVICE_VERBS)
        return (*job_rights, *services)
    if kind.launcher != "trainjob":
        return job_rights
    verbs = (verb for verb in JOB_VERBS if verb != "get")
    return (*job_rights, *((verb, kind.group, "trainingruntimes", "its runtime") for verb in verbs))


def role(settings: KubernetesSettings, launchers: Iterable[str] = KINDS) -> Object:
    """Return the Role with all rights for these launchers, `orch k8s init` and Kueue."""
    kind_rights = [right for launcher in launchers for right in rights_for(KINDS[launcher])]
    rights = [*RIGHTS, *kind_rights, *INIT_RIGHTS, *KUEUE_RIGHTS, *OPTIONAL_RIGHTS]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": names.metadata_of_namespace("orch", settings.namespace),
        "rules": rules(rights),
    }


def rules(rights: Iterable[Right]) -> list[Object]:
    """Return the rules of a Role, one for all resources of a group that have the same verbs."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for verb, group, resource, _ in rights:
        verbs.setdefault((group, resource), []).append(verb)
    resources: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), granted in verbs.items():
        resources.setdefault((group, tuple(dict.fromkeys(granted))), []).append(resource)
    return [
        {"apiGroups": [group], "resources": sorted(plurals), "verbs": list(granted)}
        for (group, granted), plurals in resources.items()
    ]


def describe_rules(rights: Iterable[Right]) -> str:
    """Return the rules of a Role in one line."""
    return "; ".join(
        f"apiGroups [{rule['apiGroups'][0] or chr(34) * 2}] "
        f"resources [{', '.join(rule['resources'])}] verbs [{', '.join(rule['verbs'])}]"
        for rule in rules(rights)
    )
