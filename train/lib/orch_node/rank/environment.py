"""The environment of a rank's training process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from orch_node import program, stack_signal
from orch_node.protocol import files
from orch_node.protocol.container import ContainerSpec
from orch_node.protocol.layout import Placement, RunLayout
from orch_node.rank import container as rank_container
from orch_node.rank.checks import repair
from orch_node.rank.refusal import fail
from orch_node.rank.setvars import SetvarsError, in_packages, sourced
from orch_node.standalone import facts


def training_environment(
    run_dir: Path, layout: RunLayout, placement: Placement, spec: ContainerSpec | None
) -> dict[str, str]:
    environment = {**inherited(layout, placement, spec), **rank_environment(run_dir, layout, placement)}
    signals = {name: signal_of(environment, name) for name in stack_signal.DEFAULTS}
    return {**environment, **signals}


def inherited(layout: RunLayout, placement: Placement, spec: ContainerSpec | None) -> dict[str, str]:
    """The launcher's environment; in a container only what is not the node's."""
    if spec:
        return rank_container.of_launcher(os.environ)
    return {**os.environ, **setvars_environment(layout, placement)}


def rank_environment(run_dir: Path, layout: RunLayout, placement: Placement) -> dict[str, str]:
    """What orch sets: the node's, the run's, and this rank's own on top."""
    planned = read_env_file(run_dir / files.ENVIRONMENT)
    return {
        **facts.isa_variables(),
        **provisioned_environment(),
        **planned,
        "MASTER_PORT": master_port(planned["MASTER_PORT"]),
        "ORCH_PLANNED_WORLD_SIZE": str(layout.planned_size),
        **torchrun_variables(run_dir.name, layout, placement, os.environ),
        "OMP_NUM_THREADS": str(placement.threads),
        "ORCH_RUN_DIR": str(run_dir),
        "ORCH_EVENTS_FD": os.environ["ORCH_EVENTS_FD"],
        **layout.entry(placement.node).env,
        **placement.env,
    }


def torchrun_variables(
    run_id: str, layout: RunLayout, placement: Placement, launcher: Mapping[str, str]
) -> dict[str, str]:
    """Return what torchrun sets for a rank, whatever starts it, with the layout's numbers.

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
        # The ranks meet at MASTER_ADDR; the store of torchrun has the numbers that torchrun gives.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": launcher.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def setvars_environment(layout: RunLayout, placement: Placement) -> dict[str, str]:
    """Intel's bindings want their setvars.sh sourced; what a plan sets comes after it."""
    if not layout.setvars:
        return {}
    try:
        return sourced(in_packages(layout.setvars), os.environ)
    except SetvarsError as error:
        fail(f"{error}. To repair it: {repair(layout.entry(placement.node), None)}.")


def master_port(planned: str) -> str:
    """Another one for each attempt, of ours and of torchrun: a rank that is dying may still hold
    the last one's."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return str(int(planned) + int(os.environ.get("ORCH_ATTEMPT", "1")) - 1 + 16 * restarts)


def provisioned_environment() -> dict[str, str]:
    """What `orch provision` has laid beside train/: variables, and secrets in a 0600 file."""
    found: dict[str, str] = {}
    for path in (program.ROOT / name for name in files.PROVISIONED):
        if path.exists():
            found |= read_env_file(path)
    return found


def secret_names() -> tuple[str, ...]:
    path = program.ROOT / files.SECRETS
    return tuple(sorted(read_env_file(path))) if path.exists() else ()


def read_env_file(path: Path) -> dict[str, str]:
    """A JSON object of strings: no quoting rules to get wrong, newlines allowed."""
    return {str(name): str(value) for name, value in json.loads(path.read_text()).items()}


def signal_of(environ: Mapping[str, str], variable: str) -> str:
    try:
        return str(stack_signal.chosen(environ, variable))
    except ValueError as error:
        fail(str(error))
