"""The fields of a request that Slurm does not support, and what to use in their place."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.planning.refusal import Refusal

NODES = "is for nodes behind SSH"
CONTAINERS = Refusal(
    "is for containers of docker on nodes, which no user of Slurm may start",
    "--container IMAGE runs the ranks in an image of Apptainer, Singularity or Pyxis.",
)

REFUSES: Mapping[str, Refusal] = {
    "inventory": Refusal(NODES, "--slurm partition=NAME chooses nodes."),
    "exclude": Refusal(NODES, "--slurm exclude=NODES leaves nodes out."),
    "queue": Refusal(NODES, "A job of Slurm waits for room by itself."),
    "ccl_workers": Refusal(NODES, "Leave it out: each rank computes on all of its cores."),
    "fabric": Refusal(
        "is for nodes behind SSH, on which it was looked for",
        "Leave it out: ranks talk TCP over the nodes' own network.",
    ),
    "accelerate_config": Refusal("is not read on Slurm", "Say it by flags: --nodes, --ppn, --precision."),
    "docker_image": CONTAINERS,
    "docker": CONTAINERS,
}
