"""Defaults for the environment variables of oneCCL and libfabric. Variables that are set take precedence."""

from __future__ import annotations

from collections.abc import Mapping

from ._interface import interface_to_ranks

# MPI's algorithm is used up to 32 MB, more than DDP's default bucket of 25 MB. For longer tensors oneCCL's
# ring took two thirds of its time (2 ranks of one host, 100 MB, fp32 and bf16; measured on a busy machine).
ALLREDUCE = "direct:0-33554432;ring:33554433-max"
# The ring reduces one chunk while the next is transferred: 1 % less time at 1 Gbit/s for 100 MB.
RING_CHUNKS = "4"
# By default the ranks of an uneven all_to_all may choose different algorithms, because oneCCL decides by how
# much a rank sends; they then wait forever. MPI's algorithm counts bytes in an int.
ALLTOALLV = "scatter"
# oneCCL tries a send to a rank that it is not connected to this often before it returns, by default 10,000 times.
# If the process of that rank has ended, that took more than 45 s on a busy machine, in which this backend can neither
# report the rank nor time out. A call of oneCCL that returns early is repeated.
OFI_RETRIES = "100"
UNDER_MPI = ("PMI_RANK", "PMI_FD", "PMI_PORT", "PMIX_RANK")


def defaults(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to `env`. Launchers may call it to learn the defaults."""
    values: dict[str, str] = {}
    mpi = any(name in env for name in UNDER_MPI)
    transport = env.get("CCL_ATL_TRANSPORT") or ("mpi" if mpi else "ofi")
    values["CCL_ATL_TRANSPORT"] = transport
    # Without separate cores, oneCCL's workers would spin on those that compute; then this backend's thread drives it.
    values["CCL_WORKER_OFFLOAD"] = "0" if env.get("CCL_WORKER_AFFINITY", "auto") == "auto" else "1"
    if transport == "mpi":
        values["CCL_ALLREDUCE"] = ALLREDUCE
        values["CCL_ALLTOALLV"] = ALLTOALLV
        values["CCL_RS_CHUNK_COUNT"] = RING_CHUNKS
        # libmpi's sums treat denormal numbers as zeros and take twice the time of this backend's with AVX2.
        values["CCL_ATL_MPI_BF16"] = "0"
    if transport == "ofi":
        # libfabric would otherwise choose a provider by the hardware that it detects.
        values["FI_PROVIDER"] = "tcp"
        values["CCL_ATL_OFI_MAX_RETRY_COUNT"] = OFI_RETRIES
        if interface := interface_to_ranks(env):
            values["FI_TCP_IFACE"] = interface
    if env.get("ORCH_CCL_SHARED_MEMORY") != "0":
        # DDP's buckets are allocated in shared memory; torch's default is 1.
        values["DDP_DISABLE_COMM_MEM"] = "0"
    if not mpi:
        # Without hydra oneCCL cannot read its variables; torchrun's are available.
        values["CCL_PROCESS_LAUNCHER"] = "none"
        values["CCL_LOCAL_RANK"] = env.get("LOCAL_RANK", "0")
        values["CCL_LOCAL_SIZE"] = env.get("LOCAL_WORLD_SIZE", "1")
    return {name: value for name, value in values.items() if not env.get(name)}
