"""TrainJob of Kubeflow's trainer, with a TrainingRuntime for torch.

The runtime contains the pods, the TrainJob the numbers. numProcPerNode is always set; without it, the
trainer starts one rank per CPU.
"""

from __future__ import annotations

from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.job import KubernetesJob, trial_job
from orchestrator.targets.kubernetes.manifests.pods import container, pod_template, resources
from orchestrator.targets.kubernetes.settings import KubernetesSettings

API = "trainer.kubeflow.org/v1alpha1"
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def launch(job: KubernetesJob) -> tuple[Object, ...]:
    """Return the runtime, then the job that refers to it."""
    return training_runtime(job), train_job(job)


def train_job(job: KubernetesJob) -> Object:
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": job.metadata_to_expire(),
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
        "apiVersion": API,
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
