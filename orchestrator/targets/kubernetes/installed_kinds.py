"""Query which kinds of jobs a cluster has."""

from __future__ import annotations

from orchestrator.errors import OrchError
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.api.connect import connect
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, PREFERRED, Installed
from orchestrator.targets.kubernetes.settings import KubernetesSettings


def query_installed(settings: KubernetesSettings) -> Installed:
    """Return the kinds that the cluster has.

    The API is queried without repetitions, because a plan can be made without a cluster.
    """
    try:
        cluster = connect(settings.context, settings.namespace)
        cluster.tries = 1
        return Installed(launchers=tuple(launcher for launcher in PREFERRED if serves(cluster, launcher)))
    except OrchError as error:
        return Installed(query_problem=f"no cluster could be queried ({error.message.rstrip('.')})")


def serves(cluster: KubernetesClient, launcher: str) -> bool:
    kind = KINDS[launcher]
    try:
        return has_resource(cluster, f"{kind.group}/{kind.version}", kind.plural)
    except NotThere:
        return False


def versions(cluster: KubernetesClient, launcher: str) -> tuple[str, ...]:
    """Return the API versions that serve the kind of a launcher."""
    kind = KINDS[launcher]
    try:
        group = cluster.get(f"/apis/{kind.group}")
        served = [entry["version"] for entry in group.get("versions") or ()]
        return tuple(version for version in served if has_resource(cluster, f"{kind.group}/{version}", kind.plural))
    except NotThere:
        return ()


def has_resource(cluster: KubernetesClient, group_version: str, plural: str) -> bool:
    resources = cluster.get(f"/apis/{group_version}").get("resources") or ()
    return any(resource["name"] == plural for resource in resources)
