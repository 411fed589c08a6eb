"""Build the pod through which files are fetched from a volume."""

from __future__ import annotations

from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests import names, pod_settings
from orchestrator.targets.kubernetes.manifests.pods import NO_TOKEN, container_security, pod_security
from orchestrator.targets.kubernetes.run_record import JobLocation

SUFFIX = "-reader"
LIFETIME_SECONDS = 3600


def reader_pod(location: JobLocation, run_id: str) -> Object:
    """Return a pod that mounts the volume, sleeps and ends by itself.

    It tolerates the same taints as the run's pods, but needs none of their nodes, which may be full.
    """
    small = {"cpu": "250m", "memory": "256Mi"}
    sleep = f"import time; time.sleep({LIFETIME_SECONDS})"
    tolerations = [pod_settings.toleration(text) for text in location.tolerations]
    pull = [{"name": name} for name in location.pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{location.job}{SUFFIX}", "labels": names.labels(run_id)},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFETIME_SECONDS,
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
