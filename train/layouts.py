"""Layouts as values: which cores a run claims, and what is left of it without some nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from roll_call import spans

Layout = dict[str, Any]
# What follows the address in a hostfile: `:2` for hydra, ` slots=2` for Open MPI.
RANKS_OF_HOST = re.compile(r"(:| slots=)\d+\s*$")


def spares_of(layout: Layout) -> dict[str, str]:
    """Spare node -> its line's head in a hostfile."""
    return {spare["node"]: spare["host"] for spare in layout.get("spares", ())}


def nodes_of(layout: Layout) -> list[str]:
    """node0 first."""
    return list(dict.fromkeys(place["node"] for place in layout["ranks"]))


def claim_of(run_dir: str, layout: Layout, node: str) -> dict[str, Any]:
    """The cores of one node that the run's ranks, and their oneCCL workers, are given; a spare
    node's are those of the nodes that it may stand in for."""
    like = nodes_of(layout)[0] if node in spares_of(layout) else node
    places = [place for place in layout["ranks"] if place["node"] == like]
    cpus = {cpu for place in places for cpu in (*place["cpus"], *place.get("worker_cpus", ()))}
    return {"run_dir": run_dir, "cpus": sorted(cpus)}


def taken_words(node: str, taken: Iterable[dict[str, Any]]) -> str:
    parts = [f"run {one['run']} has cores {spans(one['cpus'])}" for one in taken]
    return f"{node} is taken: {'; '.join(parts)}"


def replaced(layout: Layout, stand_ins: dict[str, str]) -> Layout:
    """The layout with spare nodes in the place of others: lost node -> spare."""
    ranks = [{**one, "node": stand_ins.get(one["node"], one["node"])} for one in layout["ranks"]]
    used = set(stand_ins.values())
    spares = [spare for spare in layout.get("spares", ()) if spare["node"] not in used]
    return {**layout, "ranks": ranks, "spares": spares}


def hosts_replaced(hostfile: str, layout: Layout, stand_ins: dict[str, str]) -> str:
    """The hostfile with the spare nodes' addresses; the numbers of ranks stay."""
    hosts = spares_of(layout)
    lines = hostfile.splitlines(keepends=True)
    for index, node in enumerate(nodes_of(layout)):
        if node in stand_ins:
            lines[index] = hosts[stand_ins[node]] + RANKS_OF_HOST.search(lines[index]).group()
    return "".join(lines)


def without(layout: Layout, lost: set[str]) -> Layout:
    """The layout of the nodes that are left, its ranks numbered anew."""
    kept = [place for place in layout["ranks"] if place["node"] not in lost]
    ranks = [{**place, "rank": rank} for rank, place in enumerate(kept)]
    return {**layout, "world_size": len(ranks), "ranks": ranks}


def hosts_without(hostfile: str, layout: Layout, lost: set[str]) -> str:
    """The lines of the nodes that are left; the hostfile has one for each, in their order."""
    lines = hostfile.splitlines(keepends=True)
    return "".join(lines[i] for i, node in enumerate(nodes_of(layout)) if node not in lost)


def resized(
    launcher: list[str], layout: Layout, size_at: int | None, nodes_at: int | None
) -> list[str]:
    """The launcher's command for another layout: where it names the number of ranks and of nodes.

    A launcher that names neither reads the layout itself.
    """
    numbers = {size_at: str(layout["world_size"]), nodes_at: str(len(nodes_of(layout)))}
    return [numbers.get(at, word) for at, word in enumerate(launcher)]
