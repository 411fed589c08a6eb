"""A plain Indexed Job with a headless Service, for clusters that have nothing but pods.

Kubernetes itself numbers the pods, replaces those that are lost and says how it ended; torchrun in
them meets in the first one (orch_node.pod.indexed). Wants Kubernetes 1.26 for podFailurePolicy.
"""

from __future__ import annotations

from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests.job import KubeJob
from orchestrator.targets.kubernetes.manifests.pods import container, pod_template

NAME = "torchrun"
PORT = 29400
REFUSED = 78  # sysexits(3) EX_CONFIG: a pod that says that it cannot run this run
MADE_ROOM = 75  # EX_TEMPFAIL: one whose ranks have written a checkpoint, as another pod is to end


def launch(job: KubeJob) -> tuple[Object, ...]:
    return service(job), indexed_job(job)


def service(job: KubeJob) -> Object:
    """Gives each pod a name, from the moment that it has an address."""
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


def indexed_job(job: KubeJob) -> Object:
    worker = container(job, name=NAME, mode="torchrun")
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
            # A pod that is lost takes its peers along, and each of them counts.
            "backoffLimit": job.max_restarts * job.nodes,
            "podFailurePolicy": {"rules": failure_rules()},
            "ttlSecondsAfterFinished": job.settings.ttl,
            "template": template,
        },
    }


def rendezvous(job: KubeJob) -> list[Object]:
    """What an operator would tell torchrun."""
    said = {
        "PET_NNODES": f"{job.nodes}:{job.nodes}",
        "PET_NPROC_PER_NODE": str(job.ppn),
        "PET_MAX_RESTARTS": str(job.max_restarts),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": job.run_id,
        "PET_RDZV_ENDPOINT": f"{job.name}-0.{job.name}:{PORT}",
        # Else the ranks share the agents' store, in which one that joins again waits for ever.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return [{"name": name, "value": value} for name, value in said.items()]


def failure_rules() -> list[Object]:
    """A pod that cannot run it will not the next time; one that the cluster takes away is made
    anew, and does not count as a restart; nor do its peers, which end with it."""
    refused = {"containerName": NAME, "operator": "In", "values": [REFUSED]}
    made_room = {"containerName": NAME, "operator": "In", "values": [MADE_ROOM]}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return [
        {"action": "FailJob", "onExitCodes": refused},
        {"action": "Ignore", "onPodConditions": disrupted},
        {"action": "Ignore", "onExitCodes": made_room},
    ]
