"""The objects that a namespace needs once (`orch k8s init` and `role`), and whether it is ready (`orch k8s check`)."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from orchestrator.errors import OrchError
from orchestrator.model.decision import Finding, Severity, finding_of
from orchestrator.planning.launchers import check_launcher_name
from orchestrator.planning.plan import Object, as_yaml
from orchestrator.planning.request import find_options
from orchestrator.targets.interface import CheckRequest
from orchestrator.targets.kubernetes import manifests, names
from orchestrator.targets.kubernetes.client import KubernetesClient, NotThere, connect
from orchestrator.targets.kubernetes.inputs import kubernetes_settings
from orchestrator.targets.kubernetes.options import KubernetesOptions
from orchestrator.targets.kubernetes.settings import TOKEN, KubernetesSettings


def check(request: CheckRequest) -> Iterator[Finding]:
    """Yield each finding as soon as it is known; only one if the API does not respond."""
    if request.launcher is not None:
        check_launcher_name(request.launcher, manifests.KINDS, "Kubernetes")
    options = find_options(KubernetesOptions, request.options)
    settings = kubernetes_settings(options.k8s_file, list(options.k8s), request.image)
    try:
        cluster = connect(settings.context, settings.namespace)
        version = cluster.get("/version").get("gitVersion", "an unknown version")
        served = cluster.installed_launchers()
    except OrchError as error:
        yield finding_of(error, "API")
        return
    location = f"{cluster.context or 'this cluster'}, namespace {cluster.namespace}"
    yield Finding(subject="API", severity="ok", message=f"Kubernetes {version}: {location}")
    launcher = request.launcher
    for name, kind in manifests.KINDS.items():
        if name in served:
            yield Finding(subject=kind.kind, severity="ok", message=kind.api)
        else:
            severity: Severity = "miss" if name == launcher else "absent"
            message, hint = f"{kind.api}: not installed", f"Install {kind.comes_with}."
            yield Finding(subject=kind.kind, severity=severity, message=message, hint=hint)
    if launcher is None:
        try:
            launcher, reason = manifests.default_kind(served)
        except OrchError as error:
            yield finding_of(error, "default")
            return
        yield Finding(subject="default", severity="ok", message=f"--launcher {launcher}: {reason}")
    yield check_claim(cluster, settings, request.nodes)
    yield check_creation(cluster, settings, launcher)


def check_claim(cluster: KubernetesClient, settings: KubernetesSettings, pods: int) -> Finding:
    """Return whether a claim can be used by so many pods; the scheduler of Kubernetes reports why it is not bound."""
    try:
        claim = cluster.get(f"{cluster.path('PersistentVolumeClaim')}/{settings.claim}")
    except NotThere:
        hint = "`orch k8s init --apply` creates one; storage_class names a class with ReadWriteMany."
        return Finding(subject="volume", message=f"no claim {settings.claim}", hint=hint)
    except OrchError as error:
        return finding_of(error, "volume", "unknown")
    modes, phase = claim["spec"].get("accessModes") or [], claim.get("status", {}).get("phase", "Pending")
    message = f"claim {settings.claim} is {phase}"
    if pods > 1 and "ReadWriteMany" not in modes:
        message = f"claim {settings.claim} is {', '.join(modes)}: pods on several nodes cannot share it"
    elif phase != "Lost":
        return Finding(subject="volume", severity="ok", message=message)
    return Finding(subject="volume", message=message, hint="Name another claim with --k8s claim=NAME.")


def check_creation(cluster: KubernetesClient, settings: KubernetesSettings, launcher: str) -> Finding:
    """Return whether the API accepts the objects of a run, which it checks in a dry run without creating them.

    A TrainJob is left out: the API refuses it as long as its runtime does not exist.
    """
    try:
        settings.check_image()
        job = manifests.trial_job(settings)
        created = (*manifests.config_maps(job), *manifests.job_objects(launcher, job))
        objects = [item for item in created if item["kind"] != "TrainJob"]
        for item in objects:
            cluster.apply(item, dry_run=True)
    except OrchError as error:
        return finding_of(error, "objects")
    kinds = ", ".join(item["kind"] for item in objects)
    return Finding(subject="objects", severity="ok", message=f"the API accepts {kinds} (dry run)")


def namespace_objects(settings: KubernetesSettings, token: str = "", launchers: Iterable[str] = ()) -> list[Object]:
    """Return the claim of the volume, the Secret with the token, and the Role with all rights for these launchers."""
    rules = [rule for launcher in launchers for rule in manifests.documents(launcher)[0]["rules"]]
    encoded = base64.b64encode(token.encode()).decode()
    values = {**dict(settings), "labels": names.labels(), "token": encoded, "rules": rules}
    return [*manifests.render("namespace", values)]


def role(settings: KubernetesSettings, launchers: Iterable[str] = manifests.KINDS) -> Object:
    """Return the Role with all rights that orch needs for these launchers, and for `orch k8s init`."""
    return namespace_objects(settings, launchers=launchers)[-1]


def init_objects(settings: KubernetesSettings, token: str | None, *, runtime: bool) -> tuple[Object, ...]:
    """Return the objects that a namespace needs once."""
    claim, secret, _ = namespace_objects(settings, token or "")
    return (claim, *([secret] if token else []), *([manifests.shared_runtime(settings)] if runtime else []))


def as_printable_yaml(objects: tuple[Object, ...]) -> str:
    """Return objects as YAML, without secret values."""
    hidden = {"data": {TOKEN: "<not shown>"}}
    return as_yaml(tuple({**item, **hidden} if item["kind"] == "Secret" else item for item in objects))


def apply(cluster: KubernetesClient, objects: tuple[Object, ...]) -> list[str]:
    """Create or update objects, and return their kinds and names."""
    for item in objects:
        cluster.apply(item)
    return [f"{item['kind']} {item['metadata']['name']}" for item in objects]
