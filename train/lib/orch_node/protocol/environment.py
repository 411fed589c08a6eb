"""Environment variables of ranks: defaults, preloaded libraries, local ranks and interfaces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

# For all ranks. Threads of the tokenizers library would compete with those of the rank.
ALWAYS = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
# Intel's recommendation for one pinned process per set of cores, as in torch.backends.xeon.run_cpu
# and IPEX's launcher.
OPENMP = {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}

# JSON of a recipe's variables, which ranks have unless they are set elsewhere.
DEFAULTS = "ORCH_RANK_DEFAULTS"

# Folders of the user's modules, which ranks search after those of the stack; separated by colons.
PYTHON_PATH = "ORCH_PYTHON_PATH"

# The user's interpreter on which the ranks run, and the folder of the stack's packages that has the bindings for `ccl`
# if this interpreter has none.
USER_PYTHON = "ORCH_USER_PYTHON"
BINDINGS = "ORCH_BINDINGS"


# Names of packages that an image has to contain, separated by spaces.
IMAGE_PACKAGES = "ORCH_IMAGE_PACKAGES"


def defaults(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that carries a recipe's defaults to the ranks."""
    return {DEFAULTS: json.dumps(dict(variables), sort_keys=True)} if variables else {}


def apply_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's environment with defaults for the variables that are not set."""
    return {**json.loads(environment.get(DEFAULTS, "{}")), **environment}


def python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with which Python finds the user's modules."""
    folders = [folder for name in ("PYTHONPATH", PYTHON_PATH) if (folder := environment.get(name))]
    return {"PYTHONPATH": ":".join(folders)} if PYTHON_PATH in environment else {}


def preload_variables(libraries: Sequence[str]) -> dict[str, str]:
    """Return the variables that preload libraries and, for Intel's OpenMP, pin its threads.

    Args:
        libraries: their paths.
    """
    variables = {"LD_PRELOAD": ":".join(libraries)} if libraries else {}
    return variables | (OPENMP if any("libiomp5" in path for path in libraries) else {})


def local_rank_variables(backend: Mapping[str, str], local_rank: int, local_size: int) -> dict[str, str]:
    """Return the variables that oneCCL needs if hydra does not start the ranks.

    Args:
        backend: the variables of the backend.
        local_rank: number of the rank on its node.
        local_size: number of ranks on the node.
    """
    if backend.get("CCL_PROCESS_LAUNCHER") != "none":
        return {}
    return {"CCL_LOCAL_RANK": str(local_rank), "CCL_LOCAL_SIZE": str(local_size)}


def interface_variables(interface: str) -> dict[str, str]:
    """Return the variables that restrict the traffic of ranks to a network interface."""
    return {
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
        "CCL_KVS_IFACE": interface,
        "FI_TCP_IFACE": interface,
    }
