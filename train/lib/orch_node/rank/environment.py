"""The environment of a rank's training process: variables of the launcher, of orch, of the user, and of this node."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from orch_node import program
from orch_node.protocol import files
from orch_node.protocol.container import ContainerSpec
from orch_node.protocol.environment import (
    DATA,
    DEFAULT_SIGNALS,
    DEFAULTS,
    PLANNED_WORLD_SIZE,
    configured_signal,
    find_reserved,
    override,
)
from orch_node.protocol.layout import RankEntry, RunLayout
from orch_node.rank.checks import RankError
from orch_node.standalone import facts

# `accelerate launch` sets it for ranks on CPUs (accelerate/utils/launch.py). It would pin the main thread to one core.
ACCELERATE_AFFINITY = {"KMP_AFFINITY": "granularity=fine,compact,1,0"}
# The launcher's variables for a rank; the others belong to the node, not to the image.
LAUNCHER_PREFIXES = ("ACCELERATE_", "TORCHELASTIC_", "ORCH_")
# Pass only what a login sets: other variables of the launcher could mislead the script.
PASSED_VARIABLES = ("HOME", "USER", "LANG", "PATH", "LD_LIBRARY_PATH")
IGNORED_VARIABLES = {"_", "SHLVL", "PWD", "OLDPWD"}
SOURCE_SECONDS = 60.0
# The script may read $1.. or print; only its effect on the environment counts.
SOURCE = 'file=$1; set --; . "$file" > /dev/null; env -0'
PRELOAD, TUNABLES = "LD_PRELOAD", "GLIBC_TUNABLES"
UNSAFE_CHARACTERS = " $"  # ld.so(8) splits at spaces, and replaces $LIB; paths are joined by colons
# mallopt(3): nothing by mmap, and never trim the heap's top. Unlike a high threshold for mmap,
# older releases accept both.
KEEP_HEAP = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=9223372036854775807"
HUB = "hub"  # next to train/: a cache of the hub's client
HUB_CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")  # the second is the name in huggingface_hub before 0.20
# A user who sets one of these has chosen a cache.
USER_CACHES = ("HF_HOME", *HUB_CACHES, "TRANSFORMERS_CACHE")
OFFLINE = "HF_HUB_OFFLINE"


def training_environment(
    run_dir: Path, layout: RunLayout, placement: RankEntry, spec: ContainerSpec | None
) -> dict[str, str]:
    """Return the environment of the training process: the launcher's, with what orch sets.

    In a container, the launcher's variables without those of the node.
    """
    if spec:
        inherited = {name: text for name, text in os.environ.items() if name.startswith(LAUNCHER_PREFIXES)}
    else:
        inherited = {**os.environ, **sourced_variables(layout.setvars, os.environ, layout.entry(placement.node).repair)}
    launcher = {name: value for name, value in inherited.items() if ACCELERATE_AFFINITY.get(name) != value}
    environment = {**launcher, **rank_environment(run_dir, layout, placement)}
    return {**environment, **{name: str(configured_signal(environment, name)) for name in DEFAULT_SIGNALS}}


def rank_environment(run_dir: Path, layout: RunLayout, placement: RankEntry) -> dict[str, str]:
    """Return what orch sets, and what the user has set: in the inventory, and above all in the request."""
    planned = read_env_file(run_dir / files.ENVIRONMENT)
    provisioned = provisioned_environment()
    if reserved := find_reserved(provisioned):
        raise RankError(f"{placement.node}: {reserved[0]} in orch_env or orch_secrets of the inventory: {reserved[1]}.")
    settings = {
        **facts.isa_variables(),
        PLANNED_WORLD_SIZE: str(layout.planned_size),
        **planned,
        "MASTER_PORT": master_port(planned["MASTER_PORT"]),
        **torchrun_variables(run_dir.name, layout, placement),
        "OMP_NUM_THREADS": str(placement.threads),
        "ORCH_RUN_DIR": str(run_dir),
        DATA: data_folder(run_dir),
        "ORCH_EVENTS_FD": os.environ["ORCH_EVENTS_FD"],
        **layout.entry(placement.node).env,
        **placement.env,
    }
    return override(settings, planned, provisioned)


def data_folder(run_dir: Path) -> str:
    """Return the folder of data sets: that of the caller's environment, or `data` next to the folder of all runs.

    This is where `orch sync` copies data, and on a volume of pods it is where users put it.
    """
    return os.environ.get(DATA) or str(run_dir.parent.parent / "data")


def torchrun_variables(run_id: str, layout: RunLayout, placement: RankEntry) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank, with the numbers of the layout.

    Frameworks read different ones of these variables: Lightning computes the rank from GROUP_RANK
    or NODE_RANK unless TORCHELASTIC_RUN_ID is set. NODE_RANK is the only one of them that torchrun
    does not set.
    """
    nodes = layout.node_names
    numbers = (
        (placement.rank, ("RANK", "ROLE_RANK")),
        (layout.world_size, ("WORLD_SIZE", "ROLE_WORLD_SIZE")),
        (placement.local_rank, ("LOCAL_RANK",)),
        (placement.local_world_size, ("LOCAL_WORLD_SIZE",)),
        (nodes.index(placement.node), ("GROUP_RANK", "NODE_RANK")),
        (len(nodes), ("GROUP_WORLD_SIZE",)),
    )
    return {
        **{name: str(number) for number, names in numbers for name in names},
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        "TORCHELASTIC_MAX_RESTARTS": os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"),
        # The ranks meet at MASTER_ADDR: torchrun's store numbers them in its own order.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def sourced_variables(path: str, environ: Mapping[str, str], repair: str) -> dict[str, str]:
    """Return the variables that a script of this interpreter's packages sets or changes when bash sources it.

    This is the setvars.sh of Intel's bindings, if there is one; a plan's variables override its variables.

    Args:
        path: of the script, in the folder of the packages; may be empty.
        environ: of this process.
        repair: the command that restores the packages.

    Raises:
        RankError: if the script is missing or fails.
    """
    if not path:
        return {}
    candidates = [Path(folder) / path for folder in sys.path if folder.endswith("site-packages")] or [Path(path)]
    script = next((candidate for candidate in candidates if candidate.is_file()), candidates[0])
    if not script.is_file():
        raise RankError(f"{script} is missing. To repair it: {repair}.")
    env = {name: environ[name] for name in PASSED_VARIABLES if name in environ}
    command = ["bash", "--noprofile", "--norc", "-c", SOURCE, "bash", str(script)]
    try:
        done = subprocess.run(command, env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=SOURCE_SECONDS)
        output = done.stderr.decode(errors="replace").strip()
        problem = f"exit code {done.returncode}: {output}" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        raise RankError(f"{script} could not be sourced: {problem}. To repair it: {repair}.")
    variables = (entry.partition("=") for entry in done.stdout.decode().split("\0") if entry)
    return {name: value for name, _, value in variables if env.get(name) != value and name not in IGNORED_VARIABLES}


def master_port(planned: str) -> str:
    """Return another port for each attempt of orch or torchrun: a dying rank may hold the last one."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return str(int(planned) + int(os.environ.get("ORCH_ATTEMPT", "1")) - 1 + 16 * restarts)


def provisioned_environment() -> dict[str, str]:
    """Return the variables and secrets that `orch provision` installed next to train/."""
    files_of_node = [program.ROOT / name for name in files.PROVISIONED]
    return {name: value for path in files_of_node if path.exists() for name, value in read_env_file(path).items()}


def secret_names() -> tuple[str, ...]:
    path = program.ROOT / files.SECRETS
    return tuple(sorted(read_env_file(path))) if path.exists() else ()


def read_env_file(path: Path) -> dict[str, str]:
    """Read variables from a JSON object, which needs no quoting rules and allows newlines."""
    return {str(name): str(value) for name, value in json.loads(path.read_text()).items()}


def with_node_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process on this node, with the defaults of variables that it does not have."""
    variables = {**json.loads(environment.get(DEFAULTS, "{}")), **environment}
    return with_kept_heap(with_loadable_preload(with_synced_hub(variables)))


def with_synced_hub(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's environment in which the hub's client finds the copied models and data sets.

    Without a connection to the hub, all ranks use the same revision, and none waits for a timeout.
    """
    folder = program.ROOT / HUB
    has_copies = any(any(folder.glob(f"{kind}--*")) for kind in ("models", "datasets"))
    if any(environment.get(name) for name in USER_CACHES) or not has_copies:
        return dict(environment)
    return {OFFLINE: "1", **environment, **dict.fromkeys(HUB_CACHES, str(folder))}


def with_kept_heap(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with glibc's malloc set to keep freed memory.

    By default glibc returns blocks of 128 KiB to 32 MiB (the threshold moves) to the kernel when
    they are freed, and each training step gets them back page by page, filled with zeros: a fifth
    of MiniLM's step (docs/explanation/performance.md). The user's own settings of glibc and
    another preloaded malloc take precedence.
    """
    has_settings = any(name == TUNABLES or name.startswith("MALLOC_") for name in environment)
    libraries = map(os.path.basename, environment.get(PRELOAD, "").split(":"))
    if has_settings or any("malloc" in library for library in libraries):
        return dict(environment)
    return {**environment, TUNABLES: KEEP_HEAP}


def with_loadable_preload(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with links instead of preloaded paths that the loader would split."""
    if PRELOAD not in environment:
        return dict(environment)
    return {**environment, PRELOAD: ":".join(map(link_to, environment[PRELOAD].split(":")))}


def link_to(path: str) -> str:
    """Return a loadable link to the file, or the path if it needs no link or none can be made.

    All ranks and runs of this user share a link. In a folder for everybody, only its owner can replace it.
    """
    if not any(character in path for character in UNSAFE_CHARACTERS) or not os.path.isfile(path):
        return path
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    link = f"/tmp/orch-preload-{os.getuid()}-{name}.so"
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.symlink(path, link)
        return link if os.lstat(link).st_uid == os.getuid() and os.readlink(link) == path else path
    return path
