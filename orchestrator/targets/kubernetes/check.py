"""Query which kinds of jobs a cluster has, and check whether it is ready for runs (`orch k8s check`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.model.finding import Finding, finding_of
from orchestrator.planning.launch import check_name
from orchestrator.planning.request import find_options
from orchestrator.targets.interface import CheckRequest
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.api.connect import connect
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.load import kubernetes_settings
from orchestrator.targets.kubernetes.manifests.job import config_map, trial_job
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, PREFERRED, Installed, default_kind
from orchestrator.targets.kubernetes.options import KubernetesOptions
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
    """Return whether the API serves the kind of a launcher."""
    kind = KINDS[launcher]
    try:
        resources = cluster.get(f"/apis/{kind.group}/{kind.version}").get("resources") or ()
        return any(resource["name"] == kind.plural for resource in resources)
    except NotThere:
        return False


def check(request: CheckRequest) -> Iterator[Finding]:
    """Yield each finding as soon as it is known; only one if the API does not respond."""
    if request.launcher is not None:
        check_name(request.launcher, KINDS, "Kubernetes")
    options = find_options(KubernetesOptions, request.options)
    settings = kubernetes_settings(options.k8s_file, list(options.k8s), request.image)
    try:
        cluster = connect(settings.context, settings.namespace)
        version = cluster.get("/version").get("gitVersion", "an unknown version")
        served = tuple(launcher for launcher in PREFERRED if serves(cluster, launcher))
    except OrchError as error:
        yield finding_of(error, "API")
        return
    location = f"{cluster.context or 'this cluster'}, namespace {cluster.namespace}"
    yield Finding(subject="API", severity="ok", message=f"Kubernetes {version}: {location}")
    yield from kinds_findings(served, request.launcher)
    launcher = request.launcher
    if launcher is None:
        try:
            choice = default_kind(Installed(launchers=served))
        except OrchError as error:
            yield finding_of(error, "default")
            return
        launcher, (decision,) = choice.value, choice.decisions
        yield Finding(subject="default", severity="ok", message=f"--launcher {launcher}: {decision.reason}")
    yield check_claim(cluster, settings, request.nodes)
    yield check_creation(cluster, settings, launcher)


def kinds_findings(served: Collection[str], requested: str | None) -> Iterator[Finding]:
    """Yield which kinds of jobs the cluster has.

    Args:
        served: the launchers whose kinds the API serves.
        requested: the launcher that the user will take, or None.
    """
    for launcher, kind in KINDS.items():
        is_served = launcher in served
        needed = requested == launcher or (requested is None and not served)
        yield Finding(
            subject=kind.kind,
            severity="ok" if is_served else "miss" if needed else "absent",
            message=f"{kind.group}/{kind.version}" + ("" if is_served else ": not installed"),
            hint="" if is_served else f"Install {kind.comes_with}.",
        )


def check_claim(cluster: KubernetesClient, settings: KubernetesSettings, pods: int) -> Finding:
    try:
        return claim_finding(cluster.get(f"{cluster.core_path('PersistentVolumeClaim')}/{settings.claim}"), pods)
    except NotThere:
        hint = "`orch k8s init --apply` creates one; storage_class names a class with ReadWriteMany."
        return Finding(subject="volume", message=f"no claim {settings.claim}", hint=hint)
    except OrchError as error:
        return finding_of(error, "volume", "unknown")


def claim_finding(claim: Mapping[str, Any], pods: int) -> Finding:
    """Return whether a claim can be used by so many pods; the scheduler of Kubernetes reports why it is not bound."""
    name, modes = claim["metadata"]["name"], claim.get("spec", {}).get("accessModes") or []
    if pods > 1 and "ReadWriteMany" not in modes:
        message = f"claim {name} is {', '.join(modes)}: pods on several nodes cannot share it"
        return Finding(subject="volume", message=message, hint="Name another claim with --k8s claim=NAME.")
    phase = claim.get("status", {}).get("phase", "Pending")
    return Finding(subject="volume", severity="ok", message=f"claim {name} is {phase}")


def check_creation(cluster: KubernetesClient, settings: KubernetesSettings, launcher: str) -> Finding:
    """Return whether the API accepts the objects of a run, which it checks in a dry run without creating them.

    A TrainJob is left out: the API refuses it as long as its runtime does not exist.
    """
    try:
        settings.check()
        job = trial_job(settings)
        objects = [item for item in (config_map(job), *KINDS[launcher].launch(job)) if item["kind"] != "TrainJob"]
        for item in objects:
            cluster.apply_object(item, dry_run=True)
    except OrchError as error:
        return finding_of(error, "objects")
    kinds = ", ".join(item["kind"] for item in objects)
    return Finding(subject="objects", severity="ok", message=f"the API accepts {kinds} (dry run)")
