"""Check whether a cluster is ready for runs (`orch k8s check`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.model.finding import Finding, finding_of
from orchestrator.planning.launch import check_name
from orchestrator.planning.request import find_options
from orchestrator.targets.interface import CheckRequest, Notify
from orchestrator.targets.kubernetes import admission, findings, image_probe, kueue, rights
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.api.connect import connect
from orchestrator.targets.kubernetes.api.errors import NotThere, Refused
from orchestrator.targets.kubernetes.installed_kinds import versions
from orchestrator.targets.kubernetes.load import kubernetes_settings
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.options import KubernetesOptions
from orchestrator.targets.kubernetes.rights import Right
from orchestrator.targets.kubernetes.settings import KubernetesSettings

TRIAL_NAME = "orch-check"  # never created: a dry run


def check(request: CheckRequest, notify: Notify) -> Iterator[Finding]:
    """Yield each finding as soon as it is known; only one if the API does not respond."""
    if request.launcher is not None:
        check_name(request.launcher, KINDS, "Kubernetes")
    options = find_options(KubernetesOptions, request.options)
    settings = kubernetes_settings(options.k8s_file, list(options.k8s), request.image)
    try:
        cluster = connect(settings.context, settings.namespace)
        version = cluster.get("/version").get("gitVersion", "an unknown version")
    except OrchError as error:
        yield finding_of(error, "API")
        return
    location = f"{cluster.context or 'this cluster'}, namespace {cluster.namespace}"
    yield Finding(subject="API", severity="ok", message=f"Kubernetes {version}: {location}")
    if namespace_error := missing_namespace(cluster):
        yield finding_of(namespace_error, "namespace")
        return
    served = {launcher: versions(cluster, launcher) for launcher in KINDS}
    yield from findings.kinds_findings(served, request.launcher)
    if request.launcher is None:
        yield findings.default_finding(served)
    launchers = findings.relevant_launchers(served, request.launcher)
    needed = [
        *rights.RIGHTS,
        *(right for launcher in launchers for right in rights.rights_for(KINDS[launcher])),
        *(rights.KUEUE_RIGHTS if settings.queue else ()),
    ]
    yield findings.rights_finding(missing_rights(cluster, needed), cluster.namespace)
    volume = check_claim(cluster, settings, request.nodes)
    yield volume
    unbound = volume.severity == "miss"
    yield findings.init_finding(missing_rights(cluster, rights.INIT_RIGHTS), needed=unbound)
    yield admission.quota_finding(readable_quotas(cluster), settings, request.nodes)
    if settings.queue:
        yield kueue.queue_finding(cluster, settings, launchers)
    nodes = readable_nodes(cluster)
    yield findings.nodes_finding(nodes, settings, request.nodes)
    yield findings.flags_finding(nodes, settings)
    yield image_probe.check_image(cluster, settings, notify, pull=request.start)


def missing_rights(cluster: KubernetesClient, needed: Iterable[Right]) -> list[Right]:
    """Return the rights that the user does not have."""
    return [right for right in needed if not is_allowed(cluster, *right[:3])]


def is_allowed(cluster: KubernetesClient, verb: str, group: str, resource: str) -> bool:
    plural, _, sub = resource.partition("/")
    attributes = {"namespace": cluster.namespace, "verb": verb, "group": group, "resource": plural}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes | ({"subresource": sub} if sub else {})},
    }
    response = cluster.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(response.get("status", {}).get("allowed"))


def missing_namespace(cluster: KubernetesClient) -> OrchError | None:
    """Return the error of a missing namespace, found by a dry run; rights do not depend on it."""
    trial = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": TRIAL_NAME}}
    try:
        cluster.apply_object(trial, dry_run=True)
    except NotThere as error:
        return error
    except OrchError:  # the check of the rights reports it
        pass
    return None


def check_claim(cluster: KubernetesClient, settings: KubernetesSettings, pods: int) -> Finding:
    path = f"{cluster.core_path('PersistentVolumeClaim')}/{settings.claim}"
    try:
        return findings.claim_finding(cluster.get(path), settings, pods)
    except NotThere:
        return findings.claim_finding(None, settings, pods)
    except OrchError as error:
        return finding_of(error, "volume", "unknown")


def readable_quotas(cluster: KubernetesClient) -> list[Any] | None:
    """Return the ResourceQuotas of the namespace, or None if they may not be listed."""
    path = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    try:
        return list(cluster.get(path).get("items") or [])
    except OrchError:
        return None


def readable_nodes(cluster: KubernetesClient) -> list[Any] | None:
    try:
        return list(cluster.get("/api/v1/nodes").get("items") or [])
    except Refused:
        return None
