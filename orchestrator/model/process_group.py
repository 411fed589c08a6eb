"""Process-group backends as data: name, registering module, requirements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import ConfigDict

# PyTorch's own builds have no MPI; these are their local versions.
PYTORCH_BUILDS = ("cpu", "cu", "rocm", "xpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A torch.distributed backend.

    Attributes:
        module: imported by each rank before the process group is created.
        requirements: the exact version of each required distribution; empty means any version.
        built_into_torch: it exists only in a torch that was built with it.
        hint: what to do if a requirement is missing.
        workers: it can reserve cores for communication.
        source: where a plug-in was registered.
        setvars: a script below site-packages that its libraries need to be sourced, if any.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # of a plug-in's keys

    name: str
    summary: str
    module: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    requirements: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = False
    built_into_torch: bool = False
    hint: str = ""
    workers: bool = False
    source: str = ""
    setvars: str = ""


GLOO = Backend(name="gloo", summary="part of PyTorch, over TCP")
CCL = Backend(
    name="ccl",
    summary="oneCCL",
    env={
        # oneCCL's worker would busy-wait on the core that computes: on unpinned ranks small messages
        # take 2 to 4 times as long as on gloo. Ranks with reserved cores enable it.
        "CCL_WORKER_OFFLOAD": "0",
        "CCL_WORKER_COUNT": "1",  # accelerate up to 1.12 does not recognize ccl with less
    },
    workers=True,
)
MPI = Backend(
    name="mpi",
    summary="MPI, in a torch that was built with it",
    built_into_torch=True,
    hint="Build PyTorch with MPI, or use --backend ccl, which communicates over MPI, too.",
)
NCCL = Backend(name="nccl", summary="NVIDIA's, between GPUs", gpu=True, hint="Use --backend ccl or gloo on CPUs.")
BACKENDS = {backend.name: backend for backend in (GLOO, CCL, MPI, NCCL)}
GPU_HINT = "To train on the GPUs: --venv FOLDER --backend nccl, with an environment whose torch is built for them."


def find_backend(name: str, backends: Mapping[str, Backend]) -> Backend | None:
    """Return a backend by its name, or one for GPUs with gloo for CPU tensors: `cpu:gloo,cuda:nccl`."""
    if ":" not in name:
        return backends.get(name)
    parts = [backends.get(part.partition(":")[2]) for part in name.lower().split(",")]
    gpu_parts = [part for part in parts if part and part.gpu]
    if len(gpu_parts) != 1 or any(part is None or not (part.gpu or part.name == GLOO.name) for part in parts):
        return None
    return replace(gpu_parts[0], name=name.lower(), summary=f"{gpu_parts[0].summary}; gloo for CPU tensors")


def uses_gpus(name: str | None, plugins: Mapping[str, Backend]) -> bool:
    """Return whether a requested backend is for GPUs."""
    backend = find_backend(name or "", {**BACKENDS, **plugins})
    return backend is not None and backend.gpu


# The variables of each of oneCCL's transports. Under hydra MPI places the ranks; otherwise orch does.
TRANSPORTS = {
    "mpi": {"CCL_ATL_TRANSPORT": "mpi"},
    "ofi": {"CCL_ATL_TRANSPORT": "ofi", "CCL_PROCESS_LAUNCHER": "none", "FI_PROVIDER": "tcp"},
}
TRANSPORT_DESCRIPTIONS = {"mpi": "over MPI", "ofi": "over libfabric (ofi), not MPI"}
