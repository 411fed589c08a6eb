"""Assign the ranks of a job to the cores that its nodes report. Nothing here has side effects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orch_node.batch.system import JobError, NodeSystem
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.batch import NODE0, Hello, JobConfig
from orch_node.protocol.cores import split, split_near
from orch_node.protocol.environment import interface_variables, local_rank_variables, rank_variables
from orch_node.protocol.node_names import fold
from orch_node.rank.checks import describe

REPAIR = "`orch provision --on {system}` for a root= folder, else `orch setup` where orch is installed"


def check_nodes(system: NodeSystem, config: JobConfig, hellos: Sequence[Hello]) -> None:
    """Check that there are enough nodes with enough cores, plausible CPU flags and the instructions required.

    Raises:
        JobError: if nodes are missing, or for the first node that cannot run its ranks.
    """
    if len(hellos) < config.nodes:
        names = fold(hello.node for hello in hellos)
        raise JobError(describe("missing-nodes", system=system, number=len(hellos), nodes=config.nodes, names=names))
    for hello in hellos:
        if (number := len(hello.cores)) < config.ppn:
            counts = {"number": number, "plural": "s" * (number != 1), "ppn": config.ppn}
            raise JobError(describe("too-few-cores", node=hello.node, hint=system.cores_hint, **counts))
        try:
            layouts.check_flags(hello.flags)
        except ValueError as error:
            raise JobError(f"{hello.node} reports {error}. Leave this node out.") from None
        if config.needs_bf16 and not layouts.bf16_flag(hello.flags):
            lack = layouts.describe_lack(hello.node)
            raise JobError(describe("bf16-required", lack=lack, hint=system.bf16_hint))


def create_layout(config: JobConfig, hellos: Sequence[Hello]) -> layouts.RunLayout:
    """Return the layout of the run.

    Args:
        config: what was planned.
        hellos: what the nodes report, in the order of their ranks, spare nodes last.
    """
    ranked, spares = hellos[: config.nodes], hellos[config.nodes :]
    return layouts.RunLayout(
        world_size=config.nodes * config.ppn,
        backend=config.backend,
        backend_module=config.backend_module,
        timeout_seconds=config.timeout_seconds,
        setvars=config.setvars,
        precision=config.precision,
        working_directory=config.working_directory,
        spares_without_bf16=tuple(spare.node for spare in spares if not layouts.bf16_flag(spare.flags)),
        spares={spare.node: spare.node for spare in spares},
        nodes=tuple(node_entry(config, hello, is_single_node=len(hellos) == 1) for hello in hellos),
        ranks=tuple(
            rank_entry(config, hello, rank=number * config.ppn + local, local=local)
            for number, hello in enumerate(ranked)
            for local in range(config.ppn)
        ),
    )


def node_entry(config: JobConfig, hello: Hello, *, is_single_node: bool) -> layouts.NodeEntry:
    """Return the entry of a node; a single node needs no address and listens on loopback."""
    repair, env = REPAIR.format(system=config.system), interface_variables(hello.interface)
    entry = layouts.NodeEntry(hello.node, hello.host, config.torch, env=env, repair=repair, recorded=False)
    if is_single_node:
        return entry
    return replace(entry, address=hello.address, interface=hello.interface, env={**env, "FI_PROVIDER": "tcp"})


def rank_entry(config: JobConfig, hello: Hello, *, rank: int, local: int) -> layouts.RankEntry:
    near = tuple(hello.gpus[rank % len(hello.gpus)] for rank in range(config.ppn) if config.on_gpus and hello.gpus)
    cores = (split_near(hello.cores, near) if near else split(hello.cores, config.ppn))[local]
    return layouts.RankEntry(
        rank=rank,
        node=hello.node,
        local_rank=local,
        local_world_size=config.ppn,
        # Which cores other jobs of the node use is unknown if it does not confine them.
        cpus=tuple(core.cpus[0] for core in cores) if hello.confined else (),
        threads=len(cores),
        env=local_rank_variables(config.env, local, config.ppn),
    )


def run_files(config: JobConfig, hellos: Sequence[Hello], libraries: Mapping[str, str]) -> dict[str, str]:
    """Return the files of the run's folder by name.

    Args:
        config: what was planned.
        hellos: what the nodes report.
        libraries: path by name of what node0 has for LD_PRELOAD.
    """
    node0 = hellos[0].address
    master = {"MASTER_ADDR": node0, "MASTER_PORT": str(config.port)}
    slots = ((hello.node, config.ppn) for hello in hellos[: config.nodes])  # the batch system's names
    planned = {name: text.replace(NODE0, node0) for name, text in config.files.items()}
    return {
        **planned,
        files.LAYOUT: layouts.render(create_layout(config, hellos)),
        files.ENVIRONMENT: json.dumps({**rank_variables(config.env, config.preload, libraries), **master}, indent=1),
        **({files.HOSTFILE: layouts.hostfile(config.mpi, slots)} if config.mpi else {}),
    }
