"""Which kinds of jobs a cluster has, as its API says."""

from __future__ import annotations

from orchestrator.errors import OrchError
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.connect import connect
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, PREFERRED, Installed
from orchestrator.targets.kubernetes.settings import KubeSettings


def ask(settings: KubeSettings) -> Installed:
    """Asked once and not again: whoever only wants to see a plan may have no cluster."""
    try:
        cluster = connect(settings.context, settings.namespace)
        cluster.tries = 1
        return Installed(launchers=tuple(one for one in PREFERRED if serves(cluster, one)))
    except OrchError as error:
        return Installed(unknown=f"no cluster could be asked ({error.message.rstrip('.')})")


def serves(cluster: Kube, launcher: str) -> bool:
    kind = KINDS[launcher]
    try:
        return has(cluster, f"{kind.group}/{kind.version}", kind.plural)
    except NotThere:
        return False


def versions(cluster: Kube, launcher: str) -> tuple[str, ...]:
    """The versions of the kind's group that have its resource."""
    kind = KINDS[launcher]
    try:
        group = cluster.get(f"/apis/{kind.group}")
        found = [one["version"] for one in group.get("versions") or ()]
        return tuple(one for one in found if has(cluster, f"{kind.group}/{one}", kind.plural))
    except NotThere:
        return ()


def has(cluster: Kube, group_version: str, plural: str) -> bool:
    resources = cluster.get(f"/apis/{group_version}").get("resources") or ()
    return any(one["name"] == plural for one in resources)
