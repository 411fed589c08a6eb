"""Check with a pod whether an image can be pulled and has orch's programs."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace

from orchestrator.errors import OrchError
from orchestrator.model.finding import Finding, finding_of
from orchestrator.planning.manifest import Object
from orchestrator.targets.interface import Notify
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.pods import (
    NO_TOKEN,
    container_security,
    node_fields,
    optional,
    pod_security,
)
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from orchestrator.targets.kubernetes.status import pod_state
from orchestrator.targets.kubernetes.volume import END_SECONDS, ending_at_sigterm

PROBE = "orch-image-check"
PULL_SECONDS = 300.0
POLL_SECONDS = 1.0
QUIET_SECONDS = 20.0  # without a reason from Kubernetes, before a line is printed


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProblem:
    """A reason why a pod does not start."""

    message_part: str  # of Kubernetes
    seconds: float  # how long to wait, because the cluster may recover
    cure: str


START_PROBLEMS = (
    StartProblem(
        message_part="cannot be pulled",
        seconds=0.0,
        cure="Check the name, and whether the nodes may pull from the registry. pull_secrets names "
        "secrets of type kubernetes.io/dockerconfigjson.",
    ),
    StartProblem(
        message_part="FailedCreatePodSandBox",
        seconds=30.0,
        cure="The image was not tried: the node's container runtime or pod network does not work. "
        "`kubectl describe node` shows it to the administrator; node_selector selects other nodes.",
    ),
    StartProblem(
        message_part="cannot be created",
        seconds=10.0,
        cure="The image was not tried: the node cannot create the container.",
    ),
    StartProblem(
        message_part="waits for a node",
        seconds=PULL_SECONDS,
        cure="The image was not tried: no node accepts the pod. node_selector, node_affinity and "
        "tolerations select nodes.",
    ),
)
NOT_STARTED = StartProblem(
    message_part="",
    seconds=PULL_SECONDS,
    cure=f"`kubectl describe pod {PROBE}` shows what it waits for while it is there; a large image takes minutes.",
)


def check_image(cluster: KubernetesClient, settings: KubernetesSettings, notify: Notify, *, pull: bool) -> Finding:
    """Check that nodes can pull the image, with a pod that does nothing."""
    if not settings.image:
        cure = "Build one with `orch image build`, and set image in orch-k8s.toml."
        return Finding(subject="image", message="no image is given", cure=cure)
    if not pull:
        cure = "Without --no-pull, a pod tries to pull it."
        return Finding(subject="image", severity="unknown", message=settings.image, cure=cure)
    with ending_at_sigterm():
        return try_pull(cluster, settings, notify)


def try_pull(cluster: KubernetesClient, settings: KubernetesSettings, notify: Notify) -> Finding:
    path = f"{cluster.core_path('Pod')}/{PROBE}"
    pod: Object | None = None
    try:
        remove(cluster, path)
        pod = cluster.apply_object(probe_pod(settings))
        return await_pull(cluster, path, settings, notify)
    except OrchError as error:
        return finding_of(error, "image", "unknown")
    finally:
        if pod is not None:
            with contextlib.suppress(OrchError):  # the check of rights reports a missing right
                cluster.delete(path, pod["metadata"]["uid"])


def probe_pod(settings: KubernetesSettings) -> Object:
    small = {"cpu": "100m", "memory": "64Mi"}
    pull = [{"name": name} for name in settings.pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": PROBE, "labels": {names.OWNER: names.MANAGER}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            **NO_TOKEN,
            "securityContext": pod_security(settings.uid),
            **({"imagePullSecrets": pull} if pull else {}),
            **optional("serviceAccountName", settings.service_account),
            **node_fields(replace(settings, spread=None, pack=None), {}),
            "containers": [
                {
                    "name": "probe",
                    "image": settings.image,
                    "command": [settings.python, f"{settings.root}/train/node.py"],
                    "resources": {"requests": dict(small), "limits": small},
                    "securityContext": container_security(),
                }
            ],
        },
    }


def await_pull(cluster: KubernetesClient, path: str, settings: KubernetesSettings, notify: Notify) -> Finding:
    """Wait until the pod has ended, or does not start for too long.

    node.py prints its usage and exits with code 2 when it has no arguments, which proves that the
    image has it.
    """
    began = time.monotonic()
    problem, since, reported = NOT_STARTED, began, ""
    while True:
        state = pod_state(cluster.get(path), cluster.events_of(PROBE))
        if state.code == 2:
            return Finding(subject="image", severity="ok", message=f"{settings.image} has orch's programs")
        if state.state in ("failed", "done"):
            program = f"{settings.root}/train/node.py"
            message = f"{settings.image} can be pulled, but {program} {state.reason}"
            cure = "`orch image build` builds an image with it; root sets another folder."
            return Finding(subject="image", message=message, cure=cure)
        if (current := start_problem(state.reason)) != problem:
            problem, since = current, time.monotonic()
        now = time.monotonic()
        if now - since >= problem.seconds or now - began >= PULL_SECONDS:  # reasons may alternate
            message = state.reason or "the pod did not start in time"
            return Finding(subject="image", message=message, cure=problem.cure)
        if state.reason and state.reason != reported:
            reported = state.reason
            notify(f"image: {reported}; waiting up to {problem.seconds:.0f} s")
        if not reported and now - began >= QUIET_SECONDS:
            reported = f"the pod with {settings.image} has not started yet"
            notify(f"image: {reported}; waiting up to {PULL_SECONDS:.0f} s, because a large image takes minutes")
        time.sleep(POLL_SECONDS)


def start_problem(message: str) -> StartProblem:
    """Return the kind of problem that a message of Kubernetes reports."""
    return next((problem for problem in START_PROBLEMS if problem.message_part in message), NOT_STARTED)


def remove(cluster: KubernetesClient, path: str) -> None:
    """Delete our leftover probe pod and wait for its end: a terminating pod cannot be updated."""
    deadline = time.monotonic() + END_SECONDS
    try:
        pod = cluster.get(path)
        while (pod["metadata"].get("labels") or {}).get(names.OWNER) == names.MANAGER:
            cluster.delete(path, pod["metadata"]["uid"])
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)
            pod = cluster.get(path)
    except OrchError:  # there is none, or the check of rights reports the missing right
        pass
