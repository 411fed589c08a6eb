"""PyTorchJob of Kubeflow's training operator: workers that torchrun joins by c10d.

There is no Master: its RANK and WORLD_SIZE would count pods. torchrun numbers the ranks, and
orch_node.pod.torchrun_rank takes them from it.
"""

from __future__ import annotations

from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests.job import KubernetesJob
from orchestrator.targets.kubernetes.manifests.pods import container, pod_template

JOIN_SECONDS = 3600
PORT = 23456  # of the operator, which sets it as torchrun's rendezvous endpoint


def launch(job: KubernetesJob) -> tuple[Object, ...]:
    worker = container(job, name="pytorch")
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
                        # With restarts allowed, a lost pod joins again.
                        "restartPolicy": "OnFailure" if job.max_restarts else "Never",
                        "template": pod_template(job, worker),
                    }
                },
            },
        },
    )


def run_policy(job: KubernetesJob) -> Object:
    """Return a policy that keeps ended pods, and their logs, until the job's time to live has passed."""
    return {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": job.settings.ttl}


def limit(job: KubernetesJob) -> Object:
    """Return the operator's limit of restarts, if there are restarts.

    At the limit the operator deletes all pods with their logs. Without restarts, a failed pod fails
    the job by itself.
    """
    return {"backoffLimit": job.max_restarts} if job.max_restarts else {}
