"""TrainJob of Kubeflow's trainer, with a TrainingRuntime for torch or Open MPI.

The runtime contains the pods, the TrainJob the numbers. numProcPerNode is always set; without it, the
trainer starts one rank per CPU.
"""

from __future__ import annotations

from orchestrator.errors import PlanError
from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.job import KubernetesJob, trial_job
from orchestrator.targets.kubernetes.manifests.mpijob import launcher, worker
from orchestrator.targets.kubernetes.manifests.pods import container, pod_template, resources
from orchestrator.targets.kubernetes.settings import KubernetesSettings

API = "trainer.kubeflow.org/v1alpha1"
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def launch(job: KubernetesJob) -> tuple[Object, ...]:
    """Return the runtime, then the job that refers to it.

    Raises:
        PlanError: for Intel MPI.
    """
    if job.mpi == "Intel":
        raise PlanError(
            "--launcher trainjob has no Intel MPI: the trainer supports only Open MPI.",
            hint="Use --launcher mpijob for Intel MPI, --mpi openmpi, or no --mpi for torchrun.",
        )
    return training_runtime(job), train_job(job)


def train_job(job: KubernetesJob) -> Object:
    trainer: Object = {"image": job.settings.image, "numNodes": job.nodes, "numProcPerNode": job.ppn}
    if job.mpi is None:
        trainer["resourcesPerNode"] = resources(job.settings.cpu, job.settings.memory)
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": job.metadata_to_expire(),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
            "trainer": trainer,
        },
    }


def training_runtime(job: KubernetesJob) -> Object:
    parts = mpi_parts(job) if job.mpi else torch_parts(job)
    policy, jobs, success = parts
    return {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": job.metadata(),
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, **policy},
            "template": {
                "spec": {
                    # The trainer's service resolves workers before they are ready.
                    "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                    # No time to live: the trainer would create the job again, and repeat the training.
                    "failurePolicy": {"maxRestarts": 0 if job.mpi else job.max_restarts},
                    **success,
                    "replicatedJobs": jobs,
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


def torch_parts(job: KubernetesJob) -> tuple[Object, list[Object], Object]:
    node = container(job, name="node", mode="torchrun")
    return {"torch": {}}, [replicated("node", job, node, labels=STEP)], {}


def mpi_parts(job: KubernetesJob) -> tuple[Object, list[Object], Object]:
    policy = {
        "mpi": {
            "mpiImplementation": "OpenMPI",
            "numProcPerNode": job.ppn,
            "sshAuthMountPath": job.settings.ssh_folder,
            "runLauncherAsNode": False,
        }
    }
    ready = [{"name": "node", "status": "Ready"}]
    start = replicated("launcher", job, launcher(job, "node"), labels=STEP) | {"dependsOn": ready}
    jobs = [replicated("node", job, worker(job, "node")), start]
    return (policy, jobs, {"successPolicy": {"operator": "All", "targetReplicatedJobs": ["launcher"]}})


def replicated(name: str, job: KubernetesJob, node: Object, labels: dict[str, str] | None = None) -> Object:
    template = pod_template(job, node)
    template["spec"]["restartPolicy"] = "Never"
    return {
        "name": name,
        "replicas": 1,
        "template": {
            **({"metadata": {"labels": dict(labels)}} if labels else {}),
            "spec": {"backoffLimit": 0, "template": template},
        },
    }
