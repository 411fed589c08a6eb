"""Nodes with hardware that is not here: recorded trees of /sys, laid out as files."""

from __future__ import annotations

from pathlib import Path

from orch_node.standalone import facts as node_facts

from orchestrator.load.facts import NodeFacts, validate
from orchestrator.load.records import parse_facts
from orchestrator.model.cluster import Facts

GOLDEN = Path(__file__).parents[1] / "golden" / "fabrics"


def write_sysfs(name: str, root: Path) -> Path:
    """The tree of that name below `root`."""
    for line in (GOLDEN / f"{name}.sysfs").read_text().splitlines():
        link = " -> " in line
        path, _, what = line.partition(" -> " if link else " = ")
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if link:
            place.symlink_to(root / what.removeprefix("/"))
        else:
            place.write_text(what + "\n")
    return root


def fi_info_output(name: str) -> str:
    """By `fi_info -l`."""
    return (GOLDEN / f"{name}.txt").read_text()


def make_facts_with_fabric(tree: str, fi_info: str, root: Path, base: Facts) -> Facts:
    """`base` with what orch finds in the tree, through the doors that a node's answer takes."""
    write_sysfs(tree, root)
    devices = node_facts.rdma_devices(root)
    found = validate(
        NodeFacts,
        {
            "hostname": "host",
            "python": base.python,
            "cpu_model": base.cpu_model,
            "flags": sorted(base.flags),
            "memory_bytes": base.memory_bytes,
            "shm_bytes": base.shm_bytes,
            "libraries": dict(base.libraries),
            "packages": dict(base.packages),
            "mpi": dict(base.mpi),
            "interfaces": {name: list(its) for name, its in base.interfaces.items()},
            "cpus": [
                {"cpu": cpu, "core": core.core, "socket": core.socket, "numa": core.numa}
                for core in base.cores
                for cpu in core.cpus
            ],
            "nics": node_facts.nics(root),
            "devices": devices,
            "fabrics": node_facts.fabrics(fi_info_output(fi_info), devices, root),
        },
        tree,
    )
    return parse_facts(found)
