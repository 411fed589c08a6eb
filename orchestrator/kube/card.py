"""A run's card as it travels in its ConfigMap: ranks as numbers, for pods are alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.layout import Layout, Place


def layout(*, word: str, nodes: int, ppn: int, threads: int) -> Layout:
    """Equal pods, `word`-0 and so on; which CPUs a pod has, only the pod will know."""
    return Layout(
        places=tuple(
            Place(
                rank=node * ppn + local,
                node=f"{word}-{node}",
                local_rank=local,
                local_world_size=ppn,
                cpus=(),
                threads=threads,
            )
            for node in range(nodes)
            for local in range(ppn)
        )
    )


def short(card: Mapping[str, Any]) -> dict[str, Any]:
    """The card without its lists of nodes and ranks: a ConfigMap holds 1 MiB."""
    first = card["layout"][0]
    kept = {name: value for name, value in card.items() if name not in ("layout", "nodes")}
    numbers = {
        "word": first["node"].rpartition("-")[0],
        "nodes": len(card["nodes"]),
        "ppn": first["local_world_size"],
        "threads": first["threads"],
    }
    return {**kept, "pods": numbers}


def whole(card: Mapping[str, Any]) -> dict[str, Any]:
    """A short card as it was before."""
    kept = {name: value for name, value in card.items() if name != "pods"}
    places = layout(**card["pods"])
    nodes = [{"node": node, "via": []} for node in places.nodes]
    return {**kept, "nodes": nodes, "layout": [plain(place) for place in places.places]}


def plain(place: Place) -> dict[str, Any]:
    """As JSON has it: lists for tuples."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(place).items()
    }
