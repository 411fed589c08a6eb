"""A plain Indexed Job with a headless Service, for clusters without operators.

Kubernetes itself numbers the pods, replaces lost ones and sets the state of the job. torchrun has
its rendezvous in the first pod (orch_node.pod.rendezvous). podFailurePolicy needs Kubernetes 1.26.
"""

from __future__ import annotations

from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests.job import KubernetesJob
from orchestrator.targets.kubernetes.manifests.pods import container, pod_template

NAME = "torchrun"
PORT = 29400
REFUSED = 78  # sysexits(3) EX_CONFIG: the pod cannot run this run
PREEMPTED = 75  # EX_TEMPFAIL: the ranks have written a checkpoint because another pod is preempted


def launch(job: KubernetesJob) -> tuple[Object, ...]:
    return service(job), indexed_job(job)


def service(job: KubernetesJob) -> Object:
    """Return the service that gives each pod a name as soon as it has an address."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": job.metadata(),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": dict(job.metadata()["labels"]),
            "ports": [{"name": "rendezvous", "port": PORT, "protocol": "TCP"}],
        },
    }


def indexed_job(job: KubernetesJob) -> Object:
    worker = container(job, name=NAME)
    worker["env"] = [*worker["env"], *rendezvous(job)]
    worker["ports"] = [{"name": "rendezvous", "containerPort": PORT, "protocol": "TCP"}]
    template = pod_template(job, worker)
    template["spec"] |= {"restartPolicy": "Never", "subdomain": job.name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": job.metadata(),
        "spec": {
            "completionMode": "Indexed",
            "completions": job.nodes,
            "parallelism": job.nodes,
            # The peers of a lost pod fail with it, and each of them counts.
            "backoffLimit": job.max_restarts * job.nodes,
            "podFailurePolicy": {"rules": failure_rules()},
            "ttlSecondsAfterFinished": job.settings.ttl,
            "template": template,
        },
    }


def rendezvous(job: KubernetesJob) -> list[Object]:
    """Return the variables that an operator would set for torchrun."""
    variables = {
        "PET_NNODES": f"{job.nodes}:{job.nodes}",
        "PET_NPROC_PER_NODE": str(job.ppn),
        "PET_MAX_RESTARTS": str(job.max_restarts),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": job.run_id,
        "PET_RDZV_ENDPOINT": f"{job.name}-0.{job.name}:{PORT}",
        # Otherwise the ranks share the agents' store, in which a rank that joins again waits forever.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return [{"name": name, "value": value} for name, value in variables.items()]


def failure_rules() -> list[Object]:
    """Return how Kubernetes handles failed pods.

    A pod that refuses the run fails the job. Pods that the cluster deletes, and their peers that end
    with them, are replaced without counting as restarts.
    """
    refused = {"containerName": NAME, "operator": "In", "values": [REFUSED]}
    preempted = {"containerName": NAME, "operator": "In", "values": [PREEMPTED]}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return [
        {"action": "FailJob", "onExitCodes": refused},
        {"action": "Ignore", "onPodConditions": disrupted},
        {"action": "Ignore", "onExitCodes": preempted},
    ]
