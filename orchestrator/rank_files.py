"""The files of a run that train/rank.py reads on every node: layout.json and env.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from orchestrator.backend import Backend
from orchestrator.cluster import Node
from orchestrator.layout import Layout, Place
from orchestrator.network import Link

TIMEOUT_SECONDS = 1800.0  # torch.distributed's own default for gloo


def layout_json(
    layout: Layout,
    backend: Backend,
    nodes: tuple[Node, ...],
    spares: tuple[Node, ...],
    links: tuple[Link, ...],
) -> str:
    """Every node with its variables, and every rank's place: one line each."""
    head: dict[str, object] = {
        "schema": 1,
        "world_size": layout.world_size,
        "backend": backend.name,
        "backend_module": backend.module,
        "timeout_seconds": TIMEOUT_SECONDS,
    }
    if backend.setvars:
        head["setvars"] = backend.setvars
    linked = {link.node: link for link in links}
    entries = [node_entry(node, linked.get(node.name)) for node in (*nodes, *spares)]
    ranks = [
        rank_entry(place, {**own_numbers(place, backend), **workers(place, places)})
        for places in layout.by_node().values()
        for place in places
    ]
    parts = [f"{quote(name)}: {quote(value)}" for name, value in head.items()]
    if spares:
        hosts: list[dict[str, object]] = [
            {"node": node.name, "host": node.address} for node in spares
        ]
        parts.append(f'"spares": {lines(hosts)}')
    parts += [f'"nodes": {lines(entries)}', f'"ranks": {lines(ranks)}']
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def lines(values: list[dict[str, object]]) -> str:
    """A JSON list with one line for each value: readable, and short with a thousand nodes."""
    return "[\n  " + ",\n  ".join(map(quote, values)) + "\n ]"


def node_entry(node: Node, link: Link | None) -> dict[str, object]:
    """What the ranks find on the node, and check: its name for itself, its torch, its address,
    its environment."""
    return {
        "name": node.name,
        "host": node.facts.hostname,
        "torch": node.facts.packages.get("torch"),
        "address": link.address if link else None,
        "interface": link.interface if link else None,
        "env": link.environment() if link else {},
    }


def rank_entry(place: Place, environment: Mapping[str, str]) -> dict[str, object]:
    return {
        "rank": place.rank,
        "node": place.node,
        "local_rank": place.local_rank,
        "local_world_size": place.local_world_size,
        "cpus": list(place.cpus),
        "worker_cpus": list(place.worker_cpus),
        "threads": place.threads,
        "env": dict(environment),
    }


def own_numbers(place: Place, backend: Backend) -> dict[str, str]:
    """Where no hydra tells oneCCL which ranks share a node, orch does."""
    if dict(backend.env).get("CCL_PROCESS_LAUNCHER") != "none":
        return {}
    return {
        "CCL_LOCAL_RANK": str(place.local_rank),
        "CCL_LOCAL_SIZE": str(place.local_world_size),
    }


def workers(place: Place, places: tuple[Place, ...]) -> dict[str, str]:
    """oneCCL's variables for cores set apart: those of all ranks of the node, rank by rank."""
    if not place.worker_cpus:
        return {}
    cpus = [cpu for other in places for cpu in other.worker_cpus]
    return {
        "CCL_WORKER_OFFLOAD": "1",
        "CCL_WORKER_COUNT": str(len(place.worker_cpus)),
        "CCL_WORKER_AFFINITY": ",".join(map(str, cpus)),
    }


def env_json(
    address: str, port: int, backend: Backend, preload: tuple[str, ...], launcher: Mapping[str, str]
) -> str:
    """What every rank finds in its environment, besides its own numbers.

    `address`, `port`: where rank 0 waits for the others. `launcher`: variables that it wants.
    """
    environment = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",  # its threads would run beside the rank's own
        **dict(backend.env),
        **launcher,
    }
    if preload:
        environment["LD_PRELOAD"] = ":".join(preload)
    if any("libiomp5" in path for path in preload):
        # Intel's recommendation for one pinned process per set of cores, as in
        # torch.backends.xeon.run_cpu and IPEX's launcher.
        environment |= {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}
    return as_json(environment)


def master_port(run_id: str) -> int:
    """A port for the rendezvous: from the run's id, below Linux' ephemeral range (32768)."""
    return 20000 + int(hashlib.sha256(run_id.encode()).hexdigest(), 16) % 12000


def quote(value: object) -> str:
    return json.dumps(value)


def as_json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
