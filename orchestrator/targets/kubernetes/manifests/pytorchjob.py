"""PyTorchJob of Kubeflow's training operator: workers that torchrun joins by c10d.

There is no Master: its RANK and WORLD_SIZE would count pods. torchrun numbers the ranks, and
orch_node.pod.torchrun_rank takes them from it.
"""

from __future__ import annotations

from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests.job import KubeJob
from orchestrator.targets.kubernetes.manifests.pods import container, pod_template

JOIN_SECONDS = 3600
PORT = 23456  # the operator's own, which it tells torchrun as the place to meet


def launch(job: KubeJob) -> tuple[Object, ...]:
    worker = container(job, name="pytorch", mode="torchrun")
    worker["ports"] = [{"name": "pytorchjob-port", "containerPort": PORT, "protocol": "TCP"}]
    return (
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": job.metadata(),
            "spec": {
                "nprocPerNode": str(job.ppn),
                "elasticPolicy": {
                    "rdzvBackend": "c10d",
                    "minReplicas": job.min_nodes,
                    "maxReplicas": job.nodes,
                    "maxRestarts": job.max_restarts,
                    # The first pods wait for the last one, which may wait for a node.
                    "rdzvConf": [{"key": "join_timeout", "value": str(JOIN_SECONDS)}],
                },
                "runPolicy": run_policy(job) | limit(job),
                "pytorchReplicaSpecs": {
                    "Worker": {
                        "replicas": job.nodes,
                        # With restarts allowed, a pod that was lost joins again.
                        "restartPolicy": "OnFailure" if job.max_restarts else "Never",
                        "template": pod_template(job, worker),
                    }
                },
            },
        },
    )


def run_policy(job: KubeJob) -> Object:
    """Pods that have ended stay for their logs until the job's time to live is over."""
    return {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": job.settings.ttl}


def limit(job: KubeJob) -> Object:
    """When the operator's limit is reached it deletes all pods at once, with their logs. So there
    is none where a failed pod fails the job by itself."""
    return {"backoffLimit": job.max_restarts} if job.max_restarts else {}
