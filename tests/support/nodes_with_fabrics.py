"""Make nodes with network hardware that this machine lacks, from recorded trees of /sys and output of fi_info."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orch_node.standalone import facts as node_facts

from orchestrator.load.records import validate
from orchestrator.model.facts import Facts
from tests.support.node_responses import make_reported_facts

INFINIBAND_CARD = {
    "name": "mlx5_0",
    "driver": "mlx5_core",
    "link": "InfiniBand",
    "interface": "ib0",
    "speed": 100_000,
    "numa": 0,
    "active": True,
}
GOLDEN = Path(__file__).parents[1] / "golden" / "fabrics"


def write_sysfs(name: str, root: Path) -> Path:
    """Write a recorded tree of /sys into a folder, and return the folder."""
    for line in (GOLDEN / f"{name}.sysfs").read_text().splitlines():
        is_link = " -> " in line
        name_in_tree, _, content = line.partition(" -> " if is_link else " = ")
        path = root / name_in_tree
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_link:
            path.symlink_to(root / content.removeprefix("/"))
        else:
            path.write_text(content + "\n")
    return root


def fi_info_output(name: str) -> str:
    """Return a recorded output of `fi_info -l`."""
    return (GOLDEN / f"{name}.txt").read_text()


def make_facts_with_fabric(tree: str, fi_info: str, root: Path, base: Facts) -> Facts:
    """Return facts with the fabrics that orch finds in a tree of /sys, validated like facts that a node sends.

    Args:
        tree: name of a recorded tree of /sys.
        fi_info: name of a recorded output of `fi_info -l`.
        root: empty folder for the tree.
        base: all other facts.
    """
    write_sysfs(tree, root)
    devices = node_facts.rdma_devices(root)
    fabrics = node_facts.fabrics(fi_info_output(fi_info), devices, root)
    reported = make_reported_facts(nics=node_facts.nics(root), devices=devices, fabrics=fabrics)
    facts = validate(Facts, reported, tree)
    return replace(base, devices=facts.devices, fabrics=facts.fabrics)
