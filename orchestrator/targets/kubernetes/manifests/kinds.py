"""The kinds of jobs that run ranks on Kubernetes, and the choice between them."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.errors import PlanError
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.pods import KubernetesJob, pod_template, pod_values, trial_job
from orchestrator.targets.kubernetes.manifests.template import documents, fill
from orchestrator.targets.kubernetes.settings import KubernetesSettings

TRAINER_API = "trainer.kubeflow.org/v1alpha1"
RENDEZVOUS_PORT = 29400


def job_objects(launcher: str, job: KubernetesJob) -> tuple[Object, ...]:
    """Return the objects of a kind of job, the job itself last.

    The first document of a template has what distinguishes the pods of the kind.

    Raises:
        PlanError: if a setting of the pods is invalid.
    """
    settings, restarts = job.settings, job.max_restarts
    values = {
        **pod_values(job),
        "name": job.name,
        "run_id": job.run_id,
        "metadata": job.metadata(),
        # Kueue suspends a job with its label until there is quota.
        "job_labels": names.labels(job.run_id) | ({} if settings.queue is None else {names.QUEUE: settings.queue}),
        "pods": job.nodes,
        "min_pods": job.min_nodes,
        "pod_range": f"{job.nodes}:{job.nodes}",
        "ppn": job.ppn,
        "ppn_text": str(job.ppn),
        "restarts": restarts,
        "restarts_text": str(restarts),
        "restarts_or_none": restarts or None,
        "pod_restarts": restarts * job.nodes,
        "lost_pods": "OnFailure" if restarts else "Never",  # with restarts allowed, a lost pod joins again
        "ttl_text": str(settings.ttl),
        "first_pod": f"{job.name}-0.{job.name}:{RENDEZVOUS_PORT}",
    }
    kind, *objects = documents(launcher)
    pod = pod_template(job, {**values, **fill(kind, values)})
    return tuple(fill(item, {**values, "pod": pod}) for item in objects)


def shared_runtime(settings: KubernetesSettings, name: str = "orch-torch") -> Object:
    """Return a runtime for the user's own TrainJobs: the image, the volume and the size of a pod.

    Each run of orch has a separate runtime, with its files.
    """
    runtime, _ = job_objects("trainjob", trial_job(settings, name))
    runtime["metadata"] = names.metadata(name, settings.namespace)
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]
    pod["metadata"] = {"labels": names.labels()}
    pod["spec"]["volumes"] = [volume for volume in pod["spec"]["volumes"] if "configMap" not in volume]
    (container,) = pod["spec"]["containers"]
    del container["command"], container["args"]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "orch-files"]
    return runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of job that runs ranks."""

    kind: str
    api: str  # its group and version
    comes_with: str  # what installs it

    @property
    def plural(self) -> str:
        return f"{self.kind.lower()}s"


KINDS = {
    "pytorchjob": Kind(kind="PyTorchJob", api="kubeflow.org/v1", comes_with="Kubeflow's training operator 1.9"),
    "trainjob": Kind(kind="TrainJob", api=TRAINER_API, comes_with="Kubeflow Trainer v2"),
    "job": Kind(kind="Job", api="batch/v1", comes_with="Kubernetes itself"),
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
