"""The options that `orch train` has only with --on k8s, and those that it refuses there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from orchestrator.planning.refusal import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeOptions:
    """`k8s`: settings as KEY=VALUE; `k8s_file`: the file with the others;
    `k8s_patch`: a file with changes to the objects; `wait_limit`: seconds until the ranks must have
    started."""

    on: ClassVar[str] = "k8s"

    k8s: tuple[str, ...] = ()
    k8s_file: Path | None = None
    k8s_patch: Path | None = None
    wait_limit: int | None = None


NODES = "is for nodes behind SSH"
CONTAINERS = Refusal("is for containers on nodes; pods have an image already", "Name it by --k8s image=NAME.")

REFUSES: Mapping[str, Refusal] = {
    "inventory": Refusal(NODES, "--k8s context=NAME and namespace=NAME choose the cluster."),
    "exclude": Refusal(NODES, "On Kubernetes node_selector chooses the nodes."),
    "spare_nodes": Refusal(NODES, "On Kubernetes the scheduler finds another node by itself."),
    "queue": Refusal(NODES, "On Kubernetes pods wait for room by themselves."),
    "ccl_workers": Refusal(NODES, "Cores are set apart only where orch pins ranks."),
    "fabric": Refusal(
        "is for nodes behind SSH, on which it was looked for", "Pods talk TCP over the cluster's own network."
    ),
    "accelerate_config": Refusal(
        "is for --launcher accelerate, which starts no pods", "Say it by flags: --nodes, --ppn, --precision."
    ),
    "docker_image": CONTAINERS,
    "docker": CONTAINERS,
}
