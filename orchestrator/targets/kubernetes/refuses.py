"""Fields of a request that pods have no use for, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.planning.refusal import Refusal

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
