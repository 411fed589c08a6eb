"""MPIJob of the MPI operator: a launcher pod that supervises mpirun, and workers with sshd."""

from __future__ import annotations

from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests.job import KubernetesJob
from orchestrator.targets.kubernetes.manifests.pods import container, pod_template, resources
from orchestrator.targets.kubernetes.manifests.pytorchjob import run_policy


def launch(job: KubernetesJob) -> tuple[Object, ...]:
    return (
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": job.metadata_to_expire(),
            "spec": {
                "mpiImplementation": job.mpi or "Intel",
                "slotsPerWorker": job.ppn,
                "sshAuthMountPath": job.settings.ssh_folder,
                # The operator's time to live concerns only the launcher's pod.
                # The supervisor in the launcher restarts ranks; the launcher itself never restarts.
                "runPolicy": run_policy(job) | {"backoffLimit": 0},
                "mpiReplicaSpecs": {
                    "Launcher": replica(1, pod_template(job, launcher(job, "mpi-launcher"))),
                    "Worker": replica(job.nodes, pod_template(job, worker(job, "mpi-worker"))),
                },
            },
        },
    )


def replica(count: int, template: Object) -> Object:
    return {"replicas": count, "restartPolicy": "Never", "template": template}


def launcher(job: KubernetesJob, name: str) -> Object:
    """Return the container of mpirun, which needs one core because it runs no rank."""
    settings = job.settings
    small = resources(settings.launcher_cpu, settings.launcher_memory)
    return container(job, name=name, mode="mpirun") | {"resources": small}


def worker(job: KubernetesJob, name: str) -> Object:
    port = job.settings.ssh_port
    return container(job, name=name, mode="sshd") | {
        "ports": [{"name": "ssh", "containerPort": port, "protocol": "TCP"}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 2},
    }
