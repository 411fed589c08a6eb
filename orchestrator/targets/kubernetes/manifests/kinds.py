"""The launchers of Kubernetes: KubeJob -> objects, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
