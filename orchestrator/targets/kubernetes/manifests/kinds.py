"""The kinds of jobs that run ranks on Kubernetes, and the choice between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import PlanError
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.job import KubernetesJob, trial_job
from orchestrator.targets.kubernetes.manifests.pods import container, pod_template, resources
from orchestrator.targets.kubernetes.settings import KubernetesSettings

JOB_CONTAINER = "torchrun"
RENDEZVOUS_PORT = 29400
REFUSED_CODE = 78  # sysexits(3) EX_CONFIG: the pod cannot run this run
PREEMPTED_CODE = 75  # EX_TEMPFAIL: the ranks have written a checkpoint because another pod is preempted


def launch_job(job: KubernetesJob) -> tuple[Object, ...]:
    """Return a plain Indexed Job with a headless Service, for clusters without operators.

    Kubernetes itself numbers the pods, replaces lost ones and sets the state of the job. torchrun has
    its rendezvous in the first pod (orch_node.pod.rendezvous). podFailurePolicy needs Kubernetes 1.26.
    """
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
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT, "protocol": "TCP"}],
        },
    }


def indexed_job(job: KubernetesJob) -> Object:
    worker = container(job, name=JOB_CONTAINER)
    worker["env"] = [*worker["env"], *rendezvous(job)]
    worker["ports"] = [{"name": "rendezvous", "containerPort": RENDEZVOUS_PORT, "protocol": "TCP"}]
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
        "PET_RDZV_ENDPOINT": f"{job.name}-0.{job.name}:{RENDEZVOUS_PORT}",
        # Otherwise the ranks share the agents' store, in which a rank that joins again waits forever.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return [{"name": name, "value": value} for name, value in variables.items()]


def failure_rules() -> list[Object]:
    """Return how Kubernetes handles failed pods.

    A pod that refuses the run fails the job. Pods that the cluster deletes, and their peers that end
    with them, are replaced without counting as restarts.
    """
    refused = {"containerName": JOB_CONTAINER, "operator": "In", "values": [REFUSED_CODE]}
    preempted = {"containerName": JOB_CONTAINER, "operator": "In", "values": [PREEMPTED_CODE]}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return [
        {"action": "FailJob", "onExitCodes": refused},
        {"action": "Ignore", "onPodConditions": disrupted},
        {"action": "Ignore", "onExitCodes": preempted},
    ]


JOIN_SECONDS = 3600
PYTORCHJOB_PORT = 23456  # of the operator, which sets it as torchrun's rendezvous endpoint


def launch_pytorchjob(job: KubernetesJob) -> tuple[Object, ...]:
    """Return a PyTorchJob of Kubeflow's training operator: workers that torchrun joins by c10d.

    There is no Master: its RANK and WORLD_SIZE would count pods. torchrun numbers the ranks, and
    orch_node.pod.torchrun_rank takes them from it.
    """
    worker = container(job, name="pytorch")
    worker["ports"] = [{"name": "pytorchjob-port", "containerPort": PYTORCHJOB_PORT, "protocol": "TCP"}]
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
                "runPolicy": {
                    "cleanPodPolicy": "Running",  # ended pods, and their logs, are kept
                    "ttlSecondsAfterFinished": job.settings.ttl,
                    # At the limit the operator deletes all pods with their logs. Without restarts, a failed pod
                    # fails the job by itself.
                    **({"backoffLimit": job.max_restarts} if job.max_restarts else {}),
                },
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


TRAINER_API = "trainer.kubeflow.org/v1alpha1"
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def launch_trainjob(job: KubernetesJob) -> tuple[Object, ...]:
    """Return a TrainingRuntime for torch, then the TrainJob of Kubeflow's trainer that refers to it.

    The runtime contains the pods, the TrainJob the numbers. numProcPerNode is always set; without it, the
    trainer starts one rank per CPU.
    """
    return training_runtime(job), train_job(job)


def train_job(job: KubernetesJob) -> Object:
    return {
        "apiVersion": TRAINER_API,
        "kind": "TrainJob",
        # The trainer ignores a time to live: `orch clean` deletes the job then.
        "metadata": job.metadata() | {"annotations": {names.TTL: str(job.settings.ttl)}},
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
            "trainer": {
                "image": job.settings.image,
                "numNodes": job.nodes,
                "numProcPerNode": job.ppn,
                "resourcesPerNode": resources(job.settings),
            },
        },
    }


def training_runtime(job: KubernetesJob) -> Object:
    return {
        "apiVersion": TRAINER_API,
        "kind": "TrainingRuntime",
        "metadata": job.metadata(),
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {
                "spec": {
                    # The trainer's service resolves workers before they are ready.
                    "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                    # No time to live: the trainer would create the job again, and repeat the training.
                    "failurePolicy": {"maxRestarts": job.max_restarts},
                    "replicatedJobs": [node_job(job)],
                }
            },
        },
    }


def shared_runtime(settings: KubernetesSettings, name: str = "orch-torch") -> Object:
    """Return a runtime for the user's own TrainJobs: the image, the volume and the size of a pod.

    Each run of orch has a separate runtime, with its files.
    """
    runtime = training_runtime(trial_job(settings, name))
    runtime["metadata"] = names.metadata_of_namespace(name, settings.namespace)
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]
    pod["metadata"] = {"labels": {names.OWNER: names.MANAGER}}
    pod["spec"]["volumes"] = [volume for volume in pod["spec"]["volumes"] if "configMap" not in volume]
    (container,) = pod["spec"]["containers"]
    del container["command"], container["args"]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "orch-files"]
    return runtime


def node_job(job: KubernetesJob) -> Object:
    template = pod_template(job, container(job, name="node"))
    template["spec"]["restartPolicy"] = "Never"
    return {
        "name": "node",
        "replicas": 1,
        "template": {"metadata": {"labels": dict(STEP)}, "spec": {"backoffLimit": 0, "template": template}},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of job that runs ranks."""

    kind: str
    api: str  # its group and version
    launch: Callable[[KubernetesJob], tuple[Object, ...]]
    comes_with: str  # what installs it

    @property
    def plural(self) -> str:
        return f"{self.kind.lower()}s"


KINDS = {
    "pytorchjob": Kind(
        kind="PyTorchJob",
        api="kubeflow.org/v1",
        launch=launch_pytorchjob,
        comes_with="Kubeflow's training operator 1.9",
    ),
    "trainjob": Kind(kind="TrainJob", api=TRAINER_API, launch=launch_trainjob, comes_with="Kubeflow Trainer v2"),
    "job": Kind(kind="Job", api="batch/v1", launch=launch_job, comes_with="Kubernetes itself"),
}


# Kubeflow develops the trainer, and discontinues its v1 operator, which has PyTorchJob.
# A cluster with neither still has plain Jobs.
PREFERRED = ("trainjob", "pytorchjob", "job")
ELASTIC = "pytorchjob"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The launchers of PREFERRED whose kinds a cluster has."""

    launchers: tuple[str, ...] = ()
    query_problem: str = ""  # why the cluster could not be queried


def default_kind(installed: Installed, *, elastic: bool = False) -> tuple[str, str]:
    """Return the launcher for a run without --launcher, and the reason for it.

    Args:
        installed: what the cluster has.
        elastic: whether the run may continue with fewer pods.

    Raises:
        PlanError: if the cluster has no kind that can run it.
    """
    candidates = (ELASTIC,) if elastic else PREFERRED
    if installed.query_problem:
        return candidates[0], f"assumed: {installed.query_problem}"
    launcher = next((name for name in candidates if name in installed.launchers), None)
    if launcher is None:
        kinds = " nor ".join(KINDS[name].kind for name in candidates)
        first = KINDS[candidates[0]]
        raise PlanError(f"The cluster has no {kinds}.", hint=f"Install {first.comes_with} for {first.kind}.")
    if elastic:
        return launcher, "the only kind that continues with fewer pods"
    missing = " and no ".join(KINDS[name].kind for name in PREFERRED[: PREFERRED.index(launcher)])
    return launcher, f"the cluster has no {missing}" if missing else "the cluster has it"
