"""A pod that only reads the volume: what a run has written is fetched through it. Pure."""

from __future__ import annotations

from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests import names, pod_settings
from orchestrator.targets.kubernetes.manifests.pods import NO_TOKEN, container_security, pod_security
from orchestrator.targets.kubernetes.run_record import JobLocation

SUFFIX = "-reader"
LIVES_SECONDS = 3600


def reader_pod(place: JobLocation, run_id: str) -> Object:
    """It sleeps, and ends by itself. It may be where the run's pods may, and needs none of their
    nodes: those may be full."""
    small = {"cpu": "250m", "memory": "256Mi"}
    sleep = f"import time; time.sleep({LIVES_SECONDS})"
    tolerations = [pod_settings.toleration(one) for one in place.tolerations]
    pull = [{"name": name} for name in place.pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{place.job}{SUFFIX}", "labels": names.labels(run_id)},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIVES_SECONDS,
            "terminationGracePeriodSeconds": 1,
            **NO_TOKEN,
            "securityContext": pod_security(place.uid),
            **({"imagePullSecrets": pull} if pull else {}),
            **({"serviceAccountName": place.service_account} if place.service_account else {}),
            **({"tolerations": tolerations} if tolerations else {}),
            "containers": [
                {
                    "name": "reader",
                    "image": place.image,
                    "command": [place.python, "-c", sleep],
                    "resources": {"requests": dict(small), "limits": small},
                    "volumeMounts": [{"name": "orch-data", "mountPath": place.mount, "readOnly": True}],
                    "securityContext": container_security(),
                }
            ],
            "volumes": [{"name": "orch-data", "persistentVolumeClaim": {"claimName": place.claim}}],
        },
    }
