"""The kinds of jobs that run ranks on Kubernetes, and the choice between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import PlanError
from orchestrator.model.decision import Choice, Decision
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import indexedjob, pytorchjob, trainjob
from orchestrator.targets.kubernetes.manifests.job import KubernetesJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of job that runs ranks."""

    launcher: str
    kind: str
    group: str
    version: str
    plural: str
    launch: Callable[[KubernetesJob], tuple[Object, ...]]
    comes_with: str  # what installs it


KINDS = {
    "pytorchjob": Kind(
        launcher="pytorchjob",
        kind="PyTorchJob",
        group="kubeflow.org",
        version="v1",
        plural="pytorchjobs",
        launch=pytorchjob.launch,
        comes_with="Kubeflow's training operator 1.9",
    ),
    "trainjob": Kind(
        launcher="trainjob",
        kind="TrainJob",
        group="trainer.kubeflow.org",
        version="v1alpha1",
        plural="trainjobs",
        launch=trainjob.launch,
        comes_with="Kubeflow Trainer v2",
    ),
    "job": Kind(
        launcher="job",
        kind="Job",
        group="batch",
        version="v1",
        plural="jobs",
        launch=indexedjob.launch,
        comes_with="Kubernetes itself",
    ),
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


def default_kind(installed: Installed, *, elastic: bool = False) -> Choice[str]:
    """Return the launcher for a run without --launcher.

    Args:
        installed: what the cluster has.
        elastic: whether the run may continue with fewer pods.

    Raises:
        PlanError: if the cluster has no kind that can run it.
    """
    candidates = (ELASTIC,) if elastic else PREFERRED
    launcher = next((name for name in candidates if name in installed.launchers), None)
    if installed.query_problem:
        return choice_of(candidates[0], f"assumed: {installed.query_problem}")
    if launcher is None:
        kinds = " nor ".join(KINDS[name].kind for name in candidates)
        first = KINDS[candidates[0]]
        raise PlanError(
            f"The cluster has no {kinds}.",
            hint=f"Install {first.comes_with} for {first.kind}. `orch k8s check` shows what the cluster has.",
        )
    return choice_of(launcher, reason_for(launcher, installed, elastic=elastic))


def reason_for(launcher: str, installed: Installed, *, elastic: bool) -> str:
    if elastic:
        return "the only kind that continues with fewer pods"
    missing = [KINDS[name].kind for name in PREFERRED[: PREFERRED.index(launcher)]]
    if missing:
        return f"the cluster has no {' and no '.join(missing)}"
    comparison = ", and Kubeflow discontinues PyTorchJob" if "pytorchjob" in installed.launchers else ""
    return f"the cluster has it{comparison}"


def choice_of(launcher: str, reason: str) -> Choice[str]:
    decision = Decision(topic="launcher", value=KINDS[launcher].kind, reason=reason)
    return Choice(launcher, (decision,))
