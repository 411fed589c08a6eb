"""The kinds of jobs that run ranks on Kubernetes, and the choice between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import PlanError
from orchestrator.model.decision import Choice, Decision
from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests import indexedjob, mpijob, pytorchjob, trainjob
from orchestrator.targets.kubernetes.manifests.job import KubeJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A custom resource that runs ranks: where the API has it, and what says how it ended."""

    launcher: str
    kind: str
    group: str
    version: str
    plural: str
    launch: Callable[[KubeJob], tuple[Object, ...]]
    comes_with: str


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
    "mpijob": Kind(
        launcher="mpijob",
        kind="MPIJob",
        group="kubeflow.org",
        version="v2beta1",
        plural="mpijobs",
        launch=mpijob.launch,
        comes_with="the MPI operator (v0.4 or newer)",
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


# The trainer is what Kubeflow develops; its v1 operator, which has PyTorchJob, comes to its end.
# Where there is neither, pods are enough.
PREFERRED = ("trainjob", "pytorchjob", "job")
ELASTIC = "pytorchjob"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """Of PREFERRED, the kinds that a cluster has. `unknown`: why it could not be asked."""

    launchers: tuple[str, ...] = ()
    unknown: str = ""


def default_kind(installed: Installed, *, elastic: bool = False) -> Choice[str]:
    """`elastic`: the run may go on with fewer pods. Raises PlanError where nothing can run it."""
    wanted = (ELASTIC,) if elastic else PREFERRED
    found = next((one for one in wanted if one in installed.launchers), None)
    if installed.unknown:
        return told(wanted[0], f"assumed: {installed.unknown}")
    if found is None:
        kinds = " nor ".join(KINDS[one].kind for one in wanted)
        raise PlanError(
            f"The cluster has no {kinds}.",
            hint=f"{KINDS[wanted[0]].comes_with} brings {KINDS[wanted[0]].kind}; `orch k8s check` looks.",
        )
    return told(found, why(found, installed, elastic=elastic))


def why(found: str, installed: Installed, *, elastic: bool) -> str:
    if elastic:
        return "the only one that goes on with fewer pods"
    missing = [KINDS[one].kind for one in PREFERRED[: PREFERRED.index(found)]]
    if missing:
        return f"the cluster has no {' and no '.join(missing)}"
    outlives = ", and it outlives PyTorchJob" if "pytorchjob" in installed.launchers else ""
    return f"the cluster has it{outlives}"


def told(launcher: str, reason: str) -> Choice[str]:
    decision = Decision(topic="launcher", value=KINDS[launcher].kind, reason=reason)
    return Choice(launcher, (decision,))
