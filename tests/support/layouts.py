"""Layouts of runs, as ranks and supervisors read them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from orch_node.protocol.layout import RankEntry, RunLayout


def make_layout(*nodes: str, pinned: bool = True, **changes: Any) -> RunLayout:
    """Return the layout of a run on gloo.

    Args:
        nodes: the node of each rank.
        pinned: whether rank N is pinned to core N.
        changes: other values of the layout.
    """
    sizes, ranks = Counter(nodes), list[RankEntry]()
    for rank, node in enumerate(nodes):
        local_rank = sum(placement.node == node for placement in ranks)
        cpus = (rank,) if pinned else ()
        ranks.append(RankEntry(rank, node, local_rank, sizes[node], cpus, worker_cpus=(), threads=1, env={}))
    fields = {"backend": "gloo", "backend_module": "", "timeout_seconds": 1800.0, "nodes": (), **changes}
    return RunLayout(world_size=len(ranks), ranks=tuple(ranks), **fields)
