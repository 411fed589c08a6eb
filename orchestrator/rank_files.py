"""The files of a run that train/rank.py reads on every node: layout.json and env.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from orchestrator.backend import Backend
from orchestrator.cluster import Node
from orchestrator.layout import Layout, Place

TIMEOUT_SECONDS = 1800.0  # torch.distributed's own default for gloo


def layout_json(
    layout: Layout, backend: Backend, node_environment: Mapping[str, Mapping[str, str]]
) -> str:
    """Every rank's place. `node_environment`: node -> variables of the ranks on it alone."""
    return as_json(
        {
            "schema": 1,
            "world_size": layout.world_size,
            "backend": backend.name,
            "backend_module": backend.module,
            "timeout_seconds": TIMEOUT_SECONDS,
            "ranks": [
                entry(place, {**node_environment.get(place.node, {}), **workers(place, layout)})
                for place in layout.places
            ],
        }
    )


def entry(place: Place, environment: Mapping[str, str]) -> dict[str, object]:
    return {
        "rank": place.rank,
        "node": place.node,
        "local_rank": place.local_rank,
        "local_world_size": place.local_world_size,
        "cpus": list(place.cpus),
        "threads": place.threads,
        "env": dict(environment),
    }


def workers(place: Place, layout: Layout) -> dict[str, str]:
    """oneCCL's variables for cores set apart: those of all ranks of the node, rank by rank."""
    if not place.worker_cpus:
        return {}
    cpus = [cpu for other in layout.on(place.node) for cpu in other.worker_cpus]
    return {
        "CCL_WORKER_OFFLOAD": "1",
        "CCL_WORKER_COUNT": str(len(place.worker_cpus)),
        "CCL_WORKER_AFFINITY": ",".join(map(str, cpus)),
    }


def env_json(node0: Node, backend: Backend, preload: tuple[str, ...], run_id: str) -> str:
    """What every rank finds in its environment, besides its own numbers."""
    environment = {
        "MASTER_ADDR": node0.address,
        "MASTER_PORT": str(master_port(run_id)),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",  # its threads would run beside the rank's own
        **dict(backend.env),
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


def as_json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
