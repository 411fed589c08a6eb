"""Environment variables of ranks: defaults, preloaded libraries, local ranks, interfaces and signals."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# For all ranks. Logs of unbuffered output are always up to date.
ALWAYS = {"PYTHONUNBUFFERED": "1"}
# As in torch.backends.xeon.run_cpu and IPEX's launcher: idle threads spin for 1 ms. Their KMP_AFFINITY is left out,
# because it pins the main thread to one core of the rank, and all threads and processes that the rank starts inherit
# that. Without it 4 ranks of 4 cores train BERT-base 1.3 times as fast with `ccl`, and as fast with gloo (a Xeon with
# AMX).
OPENMP = {"KMP_BLOCKTIME": "1"}

# JSON of a recipe's variables, which ranks have unless they are set elsewhere.
DEFAULTS = "ORCH_RANK_DEFAULTS"

# Names of the variables that the user has set, separated by spaces: they override what orch sets.
USER_VARIABLES = "ORCH_USER_VARIABLES"

# The folder of data sets, which `orch sync --data` fills on nodes over SSH.
DATA = "ORCH_DATA"

# Why a user cannot set a variable for ranks, and the patterns of such names.
PATTERNS: dict[str, list[str]] = json.loads(Path(__file__).with_name("reserved_variables.json").read_text())
RESERVED = {reason: re.compile("|".join(patterns)) for reason, patterns in PATTERNS.items()}

# Folders of the user's modules, which ranks search after those of the stack; separated by colons.
PYTHON_PATH = "ORCH_PYTHON_PATH"

# The user's interpreter on which the ranks run, and the folder of the stack's packages that has the bindings for `ccl`
# if this interpreter has none.
USER_PYTHON = "ORCH_USER_PYTHON"
BINDINGS = "ORCH_BINDINGS"


# Set if a recipe is to continue from a checkpoint although its data or settings have changed.
FORCE_RESUME = "ORCH_FORCE_RESUME"

# The number of ranks at the first start of the run, which determines the global batch.
PLANNED_WORLD_SIZE = "ORCH_PLANNED_WORLD_SIZE"

# Whether a rank ends when the loss stays NaN.
STOP_ON_NAN = "ORCH_STOP_ON_NAN"

# Set to the second value if ranks keep torch's own kernels.
KERNELS = "ORCH_KERNELS"
TORCHS_KERNELS = "torch"

# At ORCH_STACK_SIGNAL a rank writes its stack traces to its log; at ORCH_PREEMPT_SIGNAL it writes a checkpoint and ends
# (preemption.py). SIGUSR1 and SIGUSR2 are avoided because scripts, Lightning and batch systems use them, mostly for
# preemption. Of the real-time signals, glibc reserves the first two, systemd uses some of SIGRTMIN+0 to +6 and +13 to
# +29 itself (systemd(1)), and profilers use low ones.
STACK_SIGNAL, PREEMPT_SIGNAL = "ORCH_STACK_SIGNAL", "ORCH_PREEMPT_SIGNAL"
DEFAULT_SIGNALS = {STACK_SIGNAL: signal.SIGRTMIN + 11, PREEMPT_SIGNAL: signal.SIGRTMIN + 12}
NO_SIGNAL = ("none", "0")

# Names of packages that an image has to contain, separated by spaces.
IMAGE_PACKAGES = "ORCH_IMAGE_PACKAGES"


def planned_variables(recipe: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """Return a recipe's variables as defaults, and the user's with their names, so that each rank keeps their values.

    Args:
        recipe: the variables of the recipe.
        user: the variables that the user has set.
    """
    defaults = {DEFAULTS: json.dumps(dict(recipe), sort_keys=True)} if recipe else {}
    return {**defaults, **({USER_VARIABLES: " ".join(sorted(user)), **user} if user else {})}


def user_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that the user has set."""
    return environment.get(USER_VARIABLES, "").split()


def override(settings: Mapping[str, str], planned: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """Return what orch sets, overridden by a recipe's variables, those of the user's files, and those of the request.

    Args:
        settings: what orch sets for a rank.
        planned: the variables of the run, with those of the recipe and of the request.
        user: those of the inventory or of a file.
    """
    recipe = {name: value for name, value in json.loads(planned.get(DEFAULTS, "{}")).items() if name in settings}
    request = {name: planned[name] for name in user_names(planned) if name in planned}
    names = {*user, *user_names(planned)}
    return {**settings, **recipe, **user, **request, USER_VARIABLES: " ".join(sorted(names))}


def find_reserved(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first name that a user cannot set for ranks, with the reason; None if there is none."""
    matches = ((name, reason) for name in names for reason, pattern in RESERVED.items() if pattern.fullmatch(name))
    return next(matches, None)


def python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with which Python finds the user's modules."""
    folders = [folder for name in ("PYTHONPATH", PYTHON_PATH) if (folder := environment.get(name))]
    return {"PYTHONPATH": ":".join(folders)} if PYTHON_PATH in environment else {}


def rank_variables(env: Mapping[str, str], preload: Sequence[str], libraries: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of every rank; LD_PRELOAD has the libraries that its image has.

    Args:
        env: the variables of the run.
        preload: the names of libraries to preload.
        libraries: the paths of the image's libraries by name.
    """
    return {**preload_variables([libraries[name] for name in preload if name in libraries]), **env}


def preload_variables(libraries: Sequence[str]) -> dict[str, str]:
    """Return the variables that preload libraries and set up Intel's OpenMP.

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
    names = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "CCL_KVS_IFACE", "FI_TCP_IFACE")
    # Without `=`, NCCL also uses others whose names begin like this one.
    return {**dict.fromkeys(names, interface), "NCCL_SOCKET_IFNAME": f"={interface}"}


def configured_signal(environ: Mapping[str, str], variable: str = STACK_SIGNAL) -> int:
    """Return the number of the signal in a variable, such as SIGUSR2, USR2, SIGRTMIN+5 or 39; 0 for none.

    Raises:
        ValueError: if a process cannot handle it.
    """
    value = environ.get(variable, "").strip()
    if not value or value.lower() in NO_SIGNAL:
        return 0 if value else DEFAULT_SIGNALS[variable]
    name, _, offset = value.upper().partition("+")
    base = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
    number = int(value) if value.isdigit() else None
    if isinstance(base, signal.Signals) and re.fullmatch(r"\d*", offset):
        number = base + int(offset or 0)
    if number not in set(map(int, signal.valid_signals())) - {signal.SIGKILL, signal.SIGSTOP}:
        raise ValueError(f"{variable} is {value!r}, which is not a signal that a process can handle.")
    return int(number)


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return signal.Signals(number).name
