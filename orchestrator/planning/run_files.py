"""Renders the files that the ranks' wrappers read on every node: layout.json and env.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from orch_node.protocol import layout as run_layouts
from orch_node.protocol.environment import ALWAYS, local_rank_variables, preload_variables
from orch_node.protocol.layout import NodeEntry, RankEntry, RunLayout, Spare

from orchestrator.model.cluster import Node
from orchestrator.model.layout import Layout, RankPlacement
from orchestrator.model.links import LOOPBACK, Link, interface_variables
from orchestrator.model.process_group import Backend

TIMEOUT_SECONDS = 1800.0  # torch.distributed's own default for gloo


def layout_json(
    layout: Layout,
    backend: Backend,
    nodes: tuple[Node, ...],
    spares: tuple[Node, ...],
    links: tuple[Link, ...],
    working_directory: str = "",
) -> str:
    """Return the content of layout.json: every node with its variables, and every rank's placement.

    Args:
        layout: the ranks.
        backend: the backend of the process group.
        nodes: the nodes of the ranks.
        spares: the spare nodes.
        links: the networks between the nodes.
        working_directory: the folder in which the script starts; empty for that of the launcher.
    """
    linked = {link.node: link for link in links}
    by_name = {node.name: node for node in nodes}
    run_layout = RunLayout(
        world_size=layout.world_size,
        backend=backend.name,
        backend_module=backend.module,
        timeout_seconds=TIMEOUT_SECONDS,
        setvars=backend.setvars,
        working_directory=working_directory,
        spares=tuple(Spare(node=node.name, host=node.address) for node in spares),
        nodes=tuple(node_entry(node, linked.get(node.name)) for node in (*nodes, *spares)),
        ranks=tuple(
            rank_entry(rank_place, backend, node_places, variables, by_name[name])
            for name, node_places in layout.by_node().items()
            for rank_place, variables in zip(
                node_places, device_variables(by_name[name], node_places, linked.get(name), backend), strict=True
            )
        ),
    )
    return run_layouts.render(run_layout)


def node_entry(node: Node, link: Link | None) -> NodeEntry:
    """Return what the ranks check on the node, its variables, and how to repair it."""
    return NodeEntry(
        name=node.name,
        host=node.facts.hostname,
        torch=node.facts.packages.get("torch"),
        address=link.address if link else None,
        interface=link.interface if link else None,
        env=link.environment() if link else interface_variables(LOOPBACK),
        repair=node.repair,
        recorded=not node.local,
    )


def device_variables(
    node: Node, node_places: tuple[RankPlacement, ...], link: Link | None, backend: Backend
) -> tuple[dict[str, str], ...]:
    """Return the variables of each rank of a node that select the devices near its cores."""
    if link is None or not link.devices:
        return ({},) * len(node_places)
    numa = {core.cpus[0]: core.numa for core in node.facts.cores}
    near = tuple(numa.get(rank_place.cpus[0]) if rank_place.cpus else None for rank_place in node_places)
    return link.rank_environments(near, dict(backend.env).get("CCL_ATL_TRANSPORT", "mpi"))


def rank_entry(
    rank_place: RankPlacement,
    backend: Backend,
    node_places: tuple[RankPlacement, ...],
    devices: Mapping[str, str],
    node: Node,
) -> RankEntry:
    """Return the entry of a rank; `node_places` are all of its node, `devices` the variables for its devices."""
    numbers = local_rank_variables(dict(backend.env), rank_place.local_rank, rank_place.local_world_size)
    gpus = node.facts.gpus if backend.gpu else ()
    if rank_place.worker_cpus:  # oneCCL's variables list the reserved cores of all ranks of the node
        cpus = [cpu for neighbour in node_places for cpu in neighbour.worker_cpus]
        numbers |= {
            "CCL_WORKER_OFFLOAD": "1",
            "CCL_WORKER_COUNT": str(len(rank_place.worker_cpus)),
            "CCL_WORKER_AFFINITY": ",".join(map(str, cpus)),
        }
    return RankEntry(
        **vars(rank_place),
        env={**numbers, **devices},
        gpu=gpus[rank_place.local_rank % len(gpus)].index if gpus else None,
    )


def env_json(address: str, port: int, backend: Backend, preload: tuple[str, ...], launcher: Mapping[str, str]) -> str:
    """Return the content of env.json: the variables that are the same for every rank.

    Args:
        address: the address of rank 0's rendezvous.
        port: its port.
        backend: the backend of the process group.
        preload: the libraries for LD_PRELOAD.
        launcher: the variables that the launcher requires, and those of the user.
    """
    environment = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        **ALWAYS,
        **preload_variables(preload),
        **dict(backend.env),
        **launcher,
    }
    return json.dumps(environment, indent=1) + "\n"


def master_port(run_id: str) -> int:
    """Return a port for the rendezvous, derived from the run's id, below Linux's ephemeral range (32768)."""
    return 20000 + int(hashlib.sha256(run_id.encode()).hexdigest(), 16) % 12000
