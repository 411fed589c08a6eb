"""What oneCCL needs to know and the user did not say. Existing variables always win."""

from __future__ import annotations

from collections.abc import Mapping

from ._interface import towards_others

# MPI's own algorithm is kept up to DDP's usual bucket of 25 MB. Beyond, oneCCL's ring took about
# two thirds of its time (2 ranks of one host, 100 MB, fp32 and bf16; measured on a busy machine).
ALLREDUCE = "direct:0-33554432;ring:33554433-max"
# Of the ring: one part is added up while another is on its way (1 Gbit/s, 100 MB: 1 % less time).
RING_CHUNKS = "4"
# By oneCCL's choice each rank of an uneven all_to_all may take another algorithm, by how much it
# sends, and wait for ever; and MPI's counts bytes in an int.
ALLTOALLV = "scatter"
UNDER_MPI = ("PMI_RANK", "PMI_FD", "PMI_PORT", "PMIX_RANK")


def defaults(env: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to `env`. Launchers can ask what would happen."""
    out: dict[str, str] = {}
    mpi = any(name in env for name in UNDER_MPI)
    transport = env.get("CCL_ATL_TRANSPORT") or ("mpi" if mpi else "ofi")
    out["CCL_ATL_TRANSPORT"] = transport
    # Without cores of their own oneCCL's workers spin on those that compute; we drive it then.
    out["CCL_WORKER_OFFLOAD"] = "0" if env.get("CCL_WORKER_AFFINITY", "auto") == "auto" else "1"
    if transport == "mpi":
        out["CCL_ALLREDUCE"] = ALLREDUCE
        out["CCL_ALLTOALLV"] = ALLTOALLV
        out["CCL_RS_CHUNK_COUNT"] = RING_CHUNKS
        # libmpi's own sums take denormal numbers for zeros, and twice the time of ours with AVX2.
        out["CCL_ATL_MPI_BF16"] = "0"
    if transport == "ofi":
        # libfabric would otherwise pick a provider by what hardware it believes to see.
        out["FI_PROVIDER"] = "tcp"
        if interface := towards_others(env):
            out["FI_TCP_IFACE"] = interface
    if env.get("ORCH_CCL_SHARED_MEMORY") != "0":
        # DDP's buckets in the ranks' common memory; torch's default is 1.
        out["DDP_DISABLE_COMM_MEM"] = "0"
    if not mpi:
        # hydra's variables are not there to be read; torchrun's are.
        out["CCL_PROCESS_LAUNCHER"] = "none"
        out["CCL_LOCAL_RANK"] = env.get("LOCAL_RANK", "0")
        out["CCL_LOCAL_SIZE"] = env.get("LOCAL_WORLD_SIZE", "1")
    return {name: value for name, value in out.items() if not env.get(name)}
