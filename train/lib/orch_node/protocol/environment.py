"""Variables of a rank that follow from others: what is preloaded, who shares its node."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

# Of every rank. The tokenizers' threads would run beside the rank's own.
ALWAYS = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
# Intel's recommendation for one pinned process per set of cores, as in torch.backends.xeon.run_cpu
# and IPEX's launcher.
OPENMP = {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}

# A recipe's: JSON of the variables that its ranks have unless somebody else has set them.
DEFAULTS = "ORCH_RANK_DEFAULTS"


def defaults(variables: Mapping[str, str]) -> dict[str, str]:
    """As a run carries them to its ranks."""
    return {DEFAULTS: json.dumps(dict(variables), sort_keys=True)} if variables else {}


def with_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """A rank's environment, with what nobody has set in it."""
    return {**json.loads(environment.get(DEFAULTS, "{}")), **environment}


def preloaded(libraries: Sequence[str]) -> dict[str, str]:
    """`libraries`: paths. Intel's OpenMP, if it is among them, has to be told how to pin."""
    found = {"LD_PRELOAD": ":".join(libraries)} if libraries else {}
    return found | (OPENMP if any("libiomp5" in path for path in libraries) else {})


def local_numbers(backend: Mapping[str, str], local_rank: int, local_size: int) -> dict[str, str]:
    """Where no hydra tells oneCCL which ranks share a node, orch does. `backend`: its variables."""
    if backend.get("CCL_PROCESS_LAUNCHER") != "none":
        return {}
    return {"CCL_LOCAL_RANK": str(local_rank), "CCL_LOCAL_SIZE": str(local_size)}


def held_to(interface: str) -> dict[str, str]:
    """Variables that have the ranks listen on this interface alone."""
    return {
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
        "CCL_KVS_IFACE": interface,
        "FI_TCP_IFACE": interface,
    }
