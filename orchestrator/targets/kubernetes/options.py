"""The options that `orch train` has only with --on k8s."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from orchestrator.targets.entry import TargetEntry, option


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
