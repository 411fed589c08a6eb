"""Which run is meant, and where it lives: recorded here, or asked of an inventory's nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import load, runs
from orchestrator.card import Whereabouts, seen_from, whereabouts
from orchestrator.cluster import Cluster
from orchestrator.errors import RequestError, did_you_mean
from orchestrator.operations.reach import Said, ask_all
from orchestrator.operations.ssh_access import write_ssh_config
from orchestrator.plan import Target

LIST_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run on the nodes. `state` is None where node0 did not tell it."""

    card: dict[str, Any]
    state: str | None
    progress: dict[str, Any] | None


def find(runs_dir: Path, name: str, inventory: str | None) -> tuple[Whereabouts, Path]:
    """A run by its id, or `last`; -> where it lives, and its folder here. Raises RequestError.

    With an inventory its nodes are asked, so that any controller finds it.
    """
    base = runs_dir.absolute()
    if inventory is None:
        run = runs.find(base, name)
        return whereabouts(run.plan), run.folder
    found, _ = ask_inventory(inventory)
    names = sorted(found, key=lambda one: found[one].card["created"])
    wanted = names[-1] if name == "last" and names else name
    if wanted not in found:
        raise RequestError(
            f"There is no run '{name}' on the nodes of {inventory}.",
            hint=did_you_mean(name, names[-10:]) if names else "",
        )
    folder = base / wanted
    if not (folder / "plan.json").exists():
        runs.keep(found[wanted].card, folder)
    return whereabouts(found[wanted].card), folder


def ask_inventory(inventory: str) -> tuple[dict[str, Found], list[Said]]:
    """Run id -> what the nodes say of it, and the nodes that said nothing."""
    cluster = load.cluster(inventory)
    write_ssh_config(cluster)
    commands = {node.name: list_command(node.python, node.root) for node in cluster.nodes}
    targets = [Target(node=node.name, via=node.via) for node in cluster.nodes if not node.local]
    said = ask_all(targets, lambda target: commands[target.node], seconds=LIST_SECONDS)
    found: dict[str, Found] = {}
    for answer in said:
        for entry in (answer.value or {}).get("runs", ()):
            add(found, entry, answer.node, ways(cluster))
    return found, [answer for answer in said if answer.value is None]


def list_command(python: str, root: str) -> tuple[str, ...]:
    return (python, f"{root}/train/runs_here.py", f"{root}/runs")


def ways(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    return {node.name: node.via for node in cluster.nodes}


def add(
    found: dict[str, Found],
    entry: Mapping[str, Any],
    node: str,
    via: Mapping[str, tuple[str, ...]],
) -> None:
    """One node's word on a run; node0's counts, since only it knows the run's state."""
    card = seen_from(entry["card"], via)
    if card["run_id"] not in found or node == card["node0"]["node"]:
        found[card["run_id"]] = Found(card=card, state=entry["state"], progress=entry["progress"])
