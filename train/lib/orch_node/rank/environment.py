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


def training_environment(
    run_dir: Path, layout: RunLayout, placement: Placement, spec: ContainerSpec | None
) -> dict[str, str]:
    environment = {
        **inherited(layout, placement, spec),
        **rank_environment(run_dir, layout, placement),
    }
    signals = {name: signal_of(environment, name) for name in stack_signal.DEFAULTS}
    return {**environment, **signals}


def inherited(
    layout: RunLayout, placement: Placement, spec: ContainerSpec | None
) -> dict[str, str]:
    """The launcher's environment; in a container only what is not the node's."""
    if spec:
        return rank_container.of_launcher(os.environ)
    return {**os.environ, **setvars_environment(layout, placement)}


def rank_environment(run_dir: Path, layout: RunLayout, placement: Placement) -> dict[str, str]:
    """What orch sets: the node's, the run's, and this rank's own on top."""
    planned = read_env_file(run_dir / files.ENVIRONMENT)
    return {
        **provisioned_environment(),
        **planned,
        "MASTER_PORT": master_port(planned["MASTER_PORT"]),
        "RANK": str(placement.rank),
        "WORLD_SIZE": str(layout.world_size),
        "ORCH_PLANNED_WORLD_SIZE": str(layout.planned_size),
        # The ranks meet at MASTER_ADDR: torchrun's own store has the numbers of its own ranks.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "OMP_NUM_THREADS": str(placement.threads),
        "ORCH_RUN_DIR": str(run_dir),
        "ORCH_EVENTS_FD": os.environ["ORCH_EVENTS_FD"],
        **layout.entry(placement.node).env,
        **placement.env,
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
