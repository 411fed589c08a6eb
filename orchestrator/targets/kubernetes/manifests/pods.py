"""Build the pods of a run, and that of `orch fetch`, which satisfy the profile `restricted` of Pod Security."""

from __future__ import annotations

from orch_node.protocol.environment import find_reserved

from orchestrator.errors import PlanError
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import names, pod_settings
from orchestrator.targets.kubernetes.manifests.job import KubernetesJob, files_volume, literal
from orchestrator.targets.kubernetes.run_record import JobLocation
from orchestrator.targets.kubernetes.settings import SECRETS, TOKEN, KubernetesSettings


def pod_security(uid: int) -> Object:
    """Return the securityContext of a pod with this user and this group of its volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": uid,
        "runAsGroup": uid,
        "fsGroup": uid,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


# No pod of orch uses the API.
NO_TOKEN = {"automountServiceAccountToken": False}


def container_security() -> Object:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


GRACE_SECONDS = 120  # for the checkpoint of a preempted run


def pod_template(job: KubernetesJob, container: Object) -> Object:
    """Return the template of a pod with one container."""
    settings = job.settings
    return {
        "metadata": {"labels": names.labels(job.run_id)},
        "spec": {
            "containers": [container],
            "volumes": volumes(job),
            "securityContext": {**pod_security(settings.uid), "fsGroupChangePolicy": "OnRootMismatch"},
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "enableServiceLinks": False,
            **NO_TOKEN,
            **(
                {"imagePullSecrets": [{"name": name} for name in settings.pull_secrets]}
                if settings.pull_secrets
                else {}
            ),
            **optional("serviceAccountName", settings.service_account),
            **optional("priorityClassName", settings.priority_class),
            **node_fields(settings, names.labels(job.run_id)),
        },
    }


def node_fields(settings: KubernetesSettings, labels: dict[str, str]) -> Object:
    """Return the fields that select nodes.

    Args:
        settings: of the pods.
        labels: of the pods that share a node label, or differ in it.
    """
    affinity = pod_settings.affinity(settings.node_affinity, settings.pack, labels)
    tolerations = [pod_settings.toleration(text) for text in settings.tolerations]
    return {
        **({"nodeSelector": dict(settings.node_selector)} if settings.node_selector else {}),
        **({"affinity": affinity} if affinity else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        **({"topologySpreadConstraints": pod_settings.spread(settings.spread, labels)} if settings.spread else {}),
        **optional("runtimeClassName", settings.runtime_class),
    }


def optional(key: str, value: str | None) -> Object:
    return {key: value} if value else {}


def container(job: KubernetesJob, *, name: str) -> Object:
    """Return a container that runs ranks."""
    settings = job.settings
    return {
        "name": name,
        "image": settings.image,
        "command": job.pod_command(),
        "args": ["--", *map(literal, job.script)],
        "env": variables(job),
        "resources": resources(settings),
        "volumeMounts": mounts(job),
        "securityContext": container_security(),
    }


def variables(job: KubernetesJob) -> list[Object]:
    """Return the environment variables of a container.

    Raises:
        PlanError: if a setting would override a variable of orch.
    """
    defaults, settings = environment(job), job.settings
    user_names = sorted({*settings.env, *settings.secret_env})
    if conflicts := [name for name in user_names if name in defaults or find_reserved([name])]:
        raise PlanError(
            f"env: {', '.join(conflicts)}: set by orch itself.",
            hint="Remove it, and use the options of `orch train` instead.",
        )
    return [
        *({"name": key, "value": literal(value)} for key, value in defaults.items()),
        *(pod_settings.variable(name, value) for name, value in settings.env.items()),
        *(pod_settings.secret_variable(name, text) for name, text in settings.secret_env.items()),
    ]


def environment(job: KubernetesJob) -> dict[str, str]:
    """Return the environment of all processes of a pod; orch_node.pod adds LD_PRELOAD."""
    mount = job.settings.mount
    return {
        "OMP_NUM_THREADS": str(job.threads),
        "CCL_WORKER_COUNT": "1",
        "HF_HOME": f"{mount}/cache/huggingface",
        "TRANSFORMERS_CACHE": f"{mount}/cache/huggingface/hub",
        "HF_TOKEN_PATH": f"{SECRETS}/{TOKEN}",
        "LOGLEVEL": "INFO",
        "PYTHONUNBUFFERED": "1",
    }


def resources(settings: KubernetesSettings) -> Object:
    """Return equal requests and limits.

    The pod is Guaranteed: it is evicted last, and gets exclusive cores if the kubelet's CPU manager
    is static.
    """
    gpus = {settings.gpu_resource: str(settings.gpu)} if settings.gpu else {}
    same = {"cpu": settings.cpu, "memory": settings.memory, **gpus}
    return {"requests": dict(same), "limits": same}


def volumes(job: KubernetesJob) -> list[Object]:
    settings = job.settings
    token = {"key": TOKEN, "path": TOKEN}
    return [
        {"name": "orch-data", "persistentVolumeClaim": {"claimName": settings.claim}},
        {"name": "orch-files", **files_volume(job)},
        {"name": "orch-shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shm}},
        {
            "name": "orch-secrets",
            # mode 0440: fsGroup makes the group the pod's own
            "secret": {"secretName": settings.token_secret, "optional": True, "defaultMode": 0o440, "items": [token]},
        },
        *(pod_settings.volume(text, number)[0] for number, text in enumerate(settings.volumes)),
    ]


def mounts(job: KubernetesJob) -> list[Object]:
    settings = job.settings
    return [
        {"name": "orch-data", "mountPath": settings.mount},
        {"name": "orch-files", "mountPath": settings.files, "readOnly": True},
        {"name": "orch-shm", "mountPath": "/dev/shm"},
        {"name": "orch-secrets", "mountPath": SECRETS, "readOnly": True},
        *(pod_settings.volume(text, number)[1] for number, text in enumerate(settings.volumes)),
    ]


READER_SUFFIX = "-reader"
READER_SECONDS = 3600


def reader_pod(location: JobLocation, run_id: str) -> Object:
    """Return a pod through which files are fetched: it mounts the volume, sleeps and ends by itself.

    It tolerates the same taints as the run's pods, but needs none of their nodes, which may be full.
    """
    small = {"cpu": "250m", "memory": "256Mi"}
    sleep = f"import time; time.sleep({READER_SECONDS})"
    tolerations = [pod_settings.toleration(text) for text in location.tolerations]
    pull = [{"name": name} for name in location.pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{location.job}{READER_SUFFIX}", "labels": names.labels(run_id)},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": READER_SECONDS,
            "terminationGracePeriodSeconds": 1,
            **NO_TOKEN,
            "securityContext": pod_security(location.uid),
            **({"imagePullSecrets": pull} if pull else {}),
            **({"serviceAccountName": location.service_account} if location.service_account else {}),
            **({"tolerations": tolerations} if tolerations else {}),
            "containers": [
                {
                    "name": "reader",
                    "image": location.image,
                    "command": [location.python, "-c", sleep],
                    "resources": {"requests": dict(small), "limits": small},
                    "volumeMounts": [{"name": "orch-data", "mountPath": location.mount, "readOnly": True}],
                    "securityContext": container_security(),
                }
            ],
            "volumes": [{"name": "orch-data", "persistentVolumeClaim": {"claimName": location.claim}}],
        },
    }
