"""Process-group backends as data: a name, the module that registers it, what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# The builds of torch on its own indexes have no MPI; a local version names them.
WHEELS_OF_TORCH = ("cpu", "cu", "rocm", "xpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A torch.distributed backend. `module` is imported by each rank before the group is made.

    `requirements`: distribution that the nodes must have -> exact version, or nothing for any.
    `advice`: what to do where something is missing. `workers`: whether it can set cores apart for
    communication. `source`: where a plug-in was registered. `setvars`: the script below
    site-packages that its libraries want to be sourced, if they do.
    """

    name: str
    summary: str
    module: str = ""
    env: tuple[tuple[str, str], ...] = ()
    requirements: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = False
    own_torch: bool = False
    advice: str = ""
    workers: bool = False
    source: str = ""
    setvars: str = ""


GLOO = Backend(name="gloo", summary="part of PyTorch, over TCP")
CCL = Backend(
    name="ccl",
    summary="oneCCL",
    env=(
        # oneCCL's own worker would spin on the core that computes: on unpinned ranks small
        # messages take 2 to 4 times as long as on gloo. Ranks with cores set apart turn it on.
        ("CCL_WORKER_OFFLOAD", "0"),
        ("CCL_WORKER_COUNT", "1"),  # accelerate up to 1.12 takes less for "no ccl here"
    ),
    workers=True,
)
MPI = Backend(
    name="mpi",
    summary="MPI itself, in a torch that was built with it",
    own_torch=True,
    advice="Build PyTorch with MPI, or take --backend ccl, which talks over MPI too.",
)
NCCL = Backend(name="nccl", summary="NVIDIA's, between GPUs", gpu=True, advice="Take --backend ccl or gloo on CPUs.")
BACKENDS = {one.name: one for one in (GLOO, CCL, MPI, NCCL)}

# How oneCCL talks -> its variables. Under hydra it asks MPI; elsewhere orch says who is where.
TRANSPORTS = {
    "mpi": (("CCL_ATL_TRANSPORT", "mpi"),),
    "ofi": (("CCL_ATL_TRANSPORT", "ofi"), ("CCL_PROCESS_LAUNCHER", "none"), ("FI_PROVIDER", "tcp")),
}
TRANSPORT_NAMES = {"mpi": "over MPI", "ofi": "over libfabric (ofi), not MPI"}
