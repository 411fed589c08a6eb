"""The nodes of a job as they are -> the files that say where its ranks run. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from orch_node.protocol import files, mpirun
from orch_node.protocol import layout as layouts
from orch_node.protocol.cores import split
from orch_node.protocol.environment import held_to, local_numbers, preloaded
from orch_node.protocol.layout import NodeEntry, Placement, RunLayout, Spare
from orch_node.protocol.precision import FLAGS_HINT, bf16_flag, check_flags, describe_lack
from orch_node.protocol.slurm import NODE0, Hello, JobConfig

REPAIR = "`orch provision --on slurm` for a root= folder, else `orch setup` where orch is installed"


class LayError(Exception):
    """Why these nodes cannot run it, in one sentence, with the way out."""


def check(config: JobConfig, hellos: Sequence[Hello]) -> None:
    """Raises LayError."""
    for one in hellos:
        if len(one.cores) < config.ppn:
            raise LayError(
                f"{one.node} gives this job {len(one.cores)} cores, and --ppn is {config.ppn}. "
                "Ask for more: --slurm cpus-per-task=N or --slurm exclusive, or fewer ranks."
            )
        try:
            check_flags(one.flags)
        except ValueError as error:
            raise LayError(f"{one.node} reports wrong CPU flags: {error}. {FLAGS_HINT}") from None
        if config.needs_bf16 and not bf16_flag(one.flags):
            raise LayError(
                f"Precision bf16: {describe_lack(one.node)}. Use --precision fp32, "
                "--allow-slow-bf16, or --slurm constraint=FEATURE for nodes that have them."
            )


def layout_of(config: JobConfig, hellos: Sequence[Hello]) -> RunLayout:
    """`hellos`: of all nodes in the order of their ranks, spare ones last."""
    ranked, spares = hellos[: config.nodes], hellos[config.nodes :]
    return RunLayout(
        world_size=config.nodes * config.ppn,
        backend=config.backend,
        backend_module=config.backend_module,
        timeout_seconds=config.timeout_seconds,
        setvars=config.setvars,
        precision=config.precision,
        spares_without_bf16=tuple(spare.node for spare in spares if not bf16_flag(spare.flags)),
        spares=tuple(Spare(node=one.node, host=one.node) for one in spares),
        nodes=tuple(entry(config, one, alone=len(hellos) == 1) for one in hellos),
        ranks=tuple(
            placement(config, one, rank=number * config.ppn + local, local=local)
            for number, one in enumerate(ranked)
            for local in range(config.ppn)
        ),
    )


def entry(config: JobConfig, hello: Hello, *, alone: bool) -> NodeEntry:
    """One node alone needs no address, and listens for nobody else."""
    return NodeEntry(
        name=hello.node,
        host=hello.host,
        torch=config.torch,
        address=None if alone else hello.address,
        interface=None if alone else hello.interface,
        env=held_to(hello.interface) if alone else {**held_to(hello.interface), "FI_PROVIDER": "tcp"},
        repair=REPAIR,
        recorded=False,
    )


def placement(config: JobConfig, hello: Hello, *, rank: int, local: int) -> Placement:
    cores = split(hello.cores, config.ppn)[local]
    return Placement(
        rank=rank,
        node=hello.node,
        local_rank=local,
        local_world_size=config.ppn,
        cpus=tuple(core.cpus[0] for core in cores),
        worker_cpus=(),
        threads=len(cores),
        env=local_numbers(config.env, local, config.ppn),
    )


def run_files(config: JobConfig, hellos: Sequence[Hello], libraries: Mapping[str, str]) -> dict[str, str]:
    """Name in the run's folder -> content. `libraries`: those that node0 has for LD_PRELOAD."""
    node0 = hellos[0].address
    found = [libraries[name] for name in config.preload if name in libraries]
    meeting = {"MASTER_ADDR": node0, "MASTER_PORT": str(config.port)}
    pairs = ((one.node, config.ppn) for one in hellos[: config.nodes])  # as srun knows them
    planned = {name: text.replace(NODE0, node0) for name, text in config.files.items()}
    return {
        **planned,
        files.LAYOUT: layouts.render(layout_of(config, hellos)),
        files.ENVIRONMENT: json.dumps({**config.env, **preloaded(found), **meeting}, indent=1),
        **({files.HOSTFILE: mpirun.hostfile(config.mpi, pairs)} if config.mpi else {}),
    }


def launcher(config: JobConfig, node0: str) -> list[str]:
    """Its words, with node0's address in them."""
    return [word.replace(NODE0, node0) for word in config.launcher]
