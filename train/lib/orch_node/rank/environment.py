"""The environment of a rank's training process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from orch_node import program, stack_signal
from orch_node.protocol import files
from orch_node.protocol.container import ContainerSpec
from orch_node.protocol.environment import DATA, find_reserved, override
from orch_node.protocol.layout import RankEntry, RunLayout
from orch_node.rank import container as rank_container
from orch_node.rank.checks import fail, repair_command
from orch_node.rank.setvars import SetvarsError, find_in_packages, sourced_variables
from orch_node.standalone import facts

# `accelerate launch` sets it for ranks on CPUs (accelerate/utils/launch.py). It would pin the main thread to one core.
ACCELERATE_AFFINITY = {"KMP_AFFINITY": "granularity=fine,compact,1,0"}


def training_environment(
    run_dir: Path, layout: RunLayout, placement: RankEntry, spec: ContainerSpec | None
) -> dict[str, str]:
    """Return the environment of the training process: the launcher's, with what orch sets.

    In a container, the launcher's variables without those of the node.
    """
    if spec:
        inherited = rank_container.launcher_variables(os.environ)
    else:
        inherited = {**os.environ, **setvars_variables(layout, placement.node)}
    launcher = {name: value for name, value in inherited.items() if ACCELERATE_AFFINITY.get(name) != value}
    environment = {**launcher, **rank_environment(run_dir, layout, placement)}
    try:
        signals = {name: str(stack_signal.configured_signal(environment, name)) for name in stack_signal.DEFAULTS}
    except ValueError as error:
        fail(str(error))
    return {**environment, **signals}


def rank_environment(run_dir: Path, layout: RunLayout, placement: RankEntry) -> dict[str, str]:
    """Return what orch sets, and what the user has set: in the inventory, and above all in the request."""
    planned = read_env_file(run_dir / files.ENVIRONMENT)
    provisioned = provisioned_environment()
    if reserved := find_reserved(provisioned):
        fail(f"{placement.node}: {reserved[0]} in orch_env or orch_secrets of the inventory: {reserved[1]}.")
    settings = {
        **facts.isa_variables(),
        **planned,
        "MASTER_PORT": master_port(planned["MASTER_PORT"]),
        "ORCH_PLANNED_WORLD_SIZE": str(layout.planned_size),
        **torchrun_variables(run_dir.name, layout, placement, os.environ),
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


def torchrun_variables(
    run_id: str, layout: RunLayout, placement: RankEntry, launcher: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank, with the numbers of the layout.

    Frameworks read different ones of these variables: Lightning computes the rank from GROUP_RANK
    or NODE_RANK unless TORCHELASTIC_RUN_ID is set. NODE_RANK is the only one of them that torchrun
    does not set.
    """
    rank, size = str(placement.rank), str(layout.world_size)
    nodes = layout.node_names
    node_rank = str(nodes.index(placement.node))
    return {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "GROUP_RANK": node_rank,
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "NODE_RANK": node_rank,
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": launcher.get("TORCHELASTIC_RESTART_COUNT", "0"),
        "TORCHELASTIC_MAX_RESTARTS": launcher.get("TORCHELASTIC_MAX_RESTARTS", "0"),
        # The ranks meet at MASTER_ADDR: torchrun's store numbers them in its own order.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": launcher.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def setvars_variables(layout: RunLayout, node: str) -> dict[str, str]:
    """Return the variables of the setvars.sh of Intel's bindings; a plan's variables override them."""
    if not layout.setvars:
        return {}
    try:
        return sourced_variables(find_in_packages(layout.setvars), os.environ)
    except SetvarsError as error:
        fail(f"{error}. To repair it: {repair_command(layout.entry(node), None)}.")


def master_port(planned: str) -> str:
    """Return another port for each attempt of orch or torchrun: a dying rank may hold the last one."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return str(int(planned) + int(os.environ.get("ORCH_ATTEMPT", "1")) - 1 + 16 * restarts)


def provisioned_environment() -> dict[str, str]:
    """Return the variables and secrets that `orch provision` installed next to train/."""
    variables: dict[str, str] = {}
    for path in (program.ROOT / name for name in files.PROVISIONED):
        if path.exists():
            variables |= read_env_file(path)
    return variables


def secret_names() -> tuple[str, ...]:
    path = program.ROOT / files.SECRETS
    return tuple(sorted(read_env_file(path))) if path.exists() else ()


def read_env_file(path: Path) -> dict[str, str]:
    """Read variables from a JSON object, which needs no quoting rules and allows newlines."""
    return {str(name): str(value) for name, value in json.loads(path.read_text()).items()}
