"""`orch k8s check` and `orch k8s init`: is the cluster ready, and what makes it so."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.planning.manifest import Object, as_yaml
from orchestrator.targets.kubernetes import checks
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.errors import NotThere, Refused
from orchestrator.targets.kubernetes.checks import Finding
from orchestrator.targets.kubernetes.installed import versions
from orchestrator.targets.kubernetes.manifests import names, security, setup
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.manifests.pods import optional, where
from orchestrator.targets.kubernetes.manifests.trainjob import shared_runtime
from orchestrator.targets.kubernetes.settings import KubeSettings
from orchestrator.targets.kubernetes.status import pod_state
from orchestrator.targets.kubernetes.volume import END_SECONDS, ending_at_sigterm

PROBE = "orch-image-check"
TRIAL = "orch-check"  # never made: a dry run
PULL_SECONDS = 300.0
POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """`launcher`: None looks whether there is any. `pull`: start a pod with the image."""

    launcher: str | None
    pods: int
    pull: bool


def check(
    connected: Callable[[], Kube], settings: KubeSettings, request: CheckRequest
) -> Iterator[Finding]:
    """What was found, as it is found; where the API cannot be asked, only that."""
    try:
        cluster = connected()
        version = cluster.get("/version").get("gitVersion", "an unknown version")
    except OrchError as error:
        yield Finding(topic="API", state="miss", words=error.message, cure=error.hint)
        return
    where = f"{cluster.context or 'this cluster'}, namespace {cluster.namespace}"
    yield Finding(topic="API", state="ok", words=f"Kubernetes {version}: {where}")
    if missing := namespace_missing(cluster):
        yield checks.namespace_finding(missing)
        return
    served = {launcher: versions(cluster, launcher) for launcher in KINDS}
    yield from checks.kinds_findings(served, request.launcher)
    if request.launcher is None:
        yield checks.default_finding(served)
    yield checks.rights_finding(denied(cluster, request, served), cluster.namespace)
    yield claim(cluster, settings, request.pods)
    nodes = listed_nodes(cluster)
    yield checks.nodes_finding(nodes, settings, request.pods)
    yield checks.flags_finding(nodes, settings)
    yield image(cluster, settings, pull=request.pull)


def denied(
    cluster: Kube, request: CheckRequest, served: dict[str, tuple[str, ...]]
) -> list[tuple[str, str, str, str]]:
    """The rights that are needed and not there."""
    launchers = checks.in_question(served, request.launcher)
    wanted = [*checks.RIGHTS, *(r for one in launchers for r in checks.rights_for(KINDS[one]))]
    return [right for right in wanted if not allowed(cluster, *right[:3])]


def allowed(cluster: Kube, verb: str, group: str, resource: str) -> bool:
    plural, _, sub = resource.partition("/")
    asked = {"namespace": cluster.namespace, "verb": verb, "group": group, "resource": plural}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked | ({"subresource": sub} if sub else {})},
    }
    answer = cluster.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer.get("status", {}).get("allowed"))


def namespace_missing(cluster: Kube) -> OrchError | None:
    """Rights are no sign of a namespace: an object that is made for a trial is."""
    trial = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": TRIAL}}
    try:
        cluster.applied(trial, dry_run=True)
    except NotThere as error:
        return error
    except OrchError:  # the check of the rights tells
        pass
    return None


def claim(cluster: Kube, settings: KubeSettings, pods: int) -> Finding:
    path = f"{cluster.core_path('PersistentVolumeClaim')}/{settings.claim}"
    try:
        return checks.claim_finding(cluster.get(path), settings, pods)
    except NotThere:
        return checks.claim_finding(None, settings, pods)
    except OrchError as error:
        return checks.claim_unseen(error)


def listed_nodes(cluster: Kube) -> list[Any] | None:
    try:
        return list(cluster.get("/api/v1/nodes").get("items") or [])
    except Refused:
        return None


def image(cluster: Kube, settings: KubeSettings, *, pull: bool) -> Finding:
    """Whether the image can be pulled: by a pod that does nothing."""
    if not settings.image:
        cure = "`orch image build` makes one; image in orch-k8s.toml names it."
        return Finding(topic="image", state="miss", words="none is given", cure=cure)
    if not pull:
        cure = "Without --no-pull a pod tries it."
        return Finding(topic="image", state="unknown", words=settings.image, cure=cure)
    with ending_at_sigterm():
        return pulled(cluster, settings)


def pulled(cluster: Kube, settings: KubeSettings) -> Finding:
    path = f"{cluster.core_path('Pod')}/{PROBE}"
    made: Object | None = None
    try:
        remove(cluster, path)
        made = cluster.applied(probe_pod(settings))
        return await_pull(cluster, path, settings)
    except OrchError as error:
        return Finding(topic="image", state="unknown", words=error.message, cure=error.hint)
    finally:
        if made is not None:
            with contextlib.suppress(OrchError):  # that one may not, the check of rights tells
                cluster.delete(path, made["metadata"]["uid"])


def probe_pod(settings: KubeSettings) -> Object:
    small = {"cpu": "100m", "memory": "64Mi"}
    pull = [{"name": name} for name in settings.pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": PROBE, "labels": {names.OWNER: names.MANAGER}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": security.of_pod(settings.uid),
            **({"imagePullSecrets": pull} if pull else {}),
            **optional("serviceAccountName", settings.service_account),
            **where(replace(settings, spread=None, pack=None), {}),
            "containers": [
                {
                    "name": "probe",
                    "image": settings.image,
                    "command": [settings.python, f"{settings.root}/train/node.py"],
                    "resources": {"requests": dict(small), "limits": small},
                    "securityContext": security.of_container(),
                }
            ],
        },
    }


def await_pull(cluster: Kube, path: str, settings: KubeSettings) -> Finding:
    """node.py without arguments says how it is used and ends with 2: then it is there."""
    deadline = time.monotonic() + PULL_SECONDS
    while True:
        found = pod_state(cluster.get(path), cluster.events_of(PROBE))
        if found.code == 2:
            return Finding(topic="image", state="ok", words=f"{settings.image} has orch's programs")
        if found.state in ("failed", "done"):
            words = (
                f"{settings.image} can be pulled, but {settings.root}/train/node.py {found.words}"
            )
            cure = "`orch image build` makes an image that has it; root names another folder."
            return Finding(topic="image", state="miss", words=words, cure=cure)
        if "cannot be pulled" in found.words or time.monotonic() > deadline:
            cure = (
                "Is the name right, and does the registry let the nodes in? pull_secrets names "
                "secrets of type kubernetes.io/dockerconfigjson."
            )
            words = found.words or "the pod did not start in time"
            return Finding(topic="image", state="miss", words=words, cure=cure)
        time.sleep(POLL_SECONDS)


def remove(cluster: Kube, path: str) -> None:
    """The probe of before, if it is ours: until it is gone, for one that ends takes no changes."""
    deadline = time.monotonic() + END_SECONDS
    try:
        pod = cluster.get(path)
        while (pod["metadata"].get("labels") or {}).get(names.OWNER) == names.MANAGER:
            cluster.delete(path, pod["metadata"]["uid"])
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)
            pod = cluster.get(path)
    except OrchError:  # none there, or no right to it: the check says that elsewhere
        pass


def init_objects(settings: KubeSettings, token: str | None, *, runtime: bool) -> tuple[Object, ...]:
    """What a namespace needs once."""
    return (
        setup.volume(settings),
        *([setup.token(settings, token)] if token else []),
        *([shared_runtime(settings)] if runtime else []),
    )


def shown(objects: tuple[Object, ...]) -> str:
    """As YAML, secrets left out."""
    return as_yaml(tuple(setup.without_secrets(one) for one in objects))


def apply(cluster: Kube, objects: tuple[Object, ...]) -> list[str]:
    """Make them, or bring them to this; -> what they are called."""
    for one in objects:
        cluster.apply(one)
    return [f"{one['kind']} {one['metadata']['name']}" for one in objects]
