"""The options that `orch train` has only with --on k8s, and those that it refuses there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from orchestrator.planning.refusal import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """The options of `orch train` that only --on k8s has."""

    on: ClassVar[str] = "k8s"

    k8s: tuple[str, ...] = ()  # KEY=VALUE
    k8s_file: Path | None = None  # with further settings
    k8s_patch: Path | None = None  # changes of the objects
    wait_limit: int | None = None  # seconds until the ranks must have started


NODES = "is for nodes behind SSH"
CONTAINERS = Refusal("is for containers on nodes; pods have an image already", "Use --k8s image=NAME.")

REFUSES: Mapping[str, Refusal] = {
    "inventory": Refusal(NODES, "Use --k8s context=NAME and namespace=NAME to choose the cluster."),
    "exclude": Refusal(NODES, "Use --k8s node_selector.LABEL=VALUE to choose nodes."),
    "spare_nodes": Refusal(NODES, "The scheduler of Kubernetes replaces nodes by itself."),
    "queue": Refusal(NODES, "Pods wait for free nodes by themselves."),
    "ccl_workers": Refusal(NODES, "Cores are reserved only on nodes where orch pins ranks."),
    "fabric": Refusal("is for nodes behind SSH, on which it was verified", "Pods use TCP over the cluster's network."),
    "accelerate_config": Refusal(
        "is for --launcher accelerate, which starts no pods", "Use the options --nodes, --ppn and --precision."
    ),
    "docker_image": CONTAINERS,
    "docker": CONTAINERS,
}
