"""The options that `orch train` has only with --on k8s, and those that it refuses there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from orchestrator.planning.request import NO_ARRAYS, UnsupportedOption
from orchestrator.targets.entry import TargetEntry, option, refused_by_manager


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """The options of `orch train` that only --on k8s has."""

    on: ClassVar[str] = "k8s"

    k8s: tuple[str, ...] = option(
        (), metavar="KEY=VALUE", help="Setting of the pods, such as cpu, memory or claim; may be repeated."
    )
    k8s_file: Path | None = option(
        None, envvar="ORCH_K8S_FILE", metavar="FILE", help="TOML file with --k8s settings. Default: orch-k8s.toml here."
    )
    k8s_patch: Path | None = option(None, metavar="FILE", help="JSON Patch (RFC 6902) for the created objects.")
    wait_limit: int | None = option(
        None,
        metavar="SECONDS",
        min=1,
        help="Stop the run if its ranks have not started after this time, for example because of a missing image, "
        "volume claim, node or quota. Default: no limit.",
    )


ENTRY = TargetEntry(
    name="kubernetes",
    title="Kubernetes",
    summary="k8s: pods of a Kubernetes cluster.",
    options=KubernetesOptions,
    target="orchestrator.targets.kubernetes.target:KubernetesTarget",
    launchers=("trainjob", "pytorchjob", "job"),  # copied: importing KINDS is slow
    has_manifest=True,
)
PACKAGES = UnsupportedOption(
    "adds packages to the stack of nodes, and pods have those of their image", "Add the packages to the image."
)
REFUSES: Mapping[str, UnsupportedOption] = {
    **refused_by_manager(
        "Kubernetes",
        inventory="Use --k8s context=NAME and namespace=NAME to choose the cluster.",
        exclude="Use --k8s node_selector.LABEL=VALUE to choose nodes.",
    ),
    "spare_nodes": UnsupportedOption("is for other hosts", "The scheduler of Kubernetes replaces nodes by itself."),
    "mpi": UnsupportedOption("is for ranks that mpirun starts; in pods, torchrun starts them", "Leave --mpi out."),
    "python": UnsupportedOption("is for nodes; pods have the Python of their image", "Use --k8s python=PATH."),
    "image_options": UnsupportedOption("is for containers on nodes", "Use --k8s KEY=VALUE for the settings of pods."),
    "requirements": PACKAGES,
    "extra": PACKAGES,
    "packages": PACKAGES,
    "array": NO_ARRAYS,
    "array_sample": NO_ARRAYS,
}
