"""Report who uses this node: `node.py usage CLAIMS`, one JSON object.

CLAIMS is the folder in which the runs of this user reserve cores.
"""

from __future__ import annotations

import os
from pathlib import Path

from orch_node.agent.core_claims import Claims, claims_of_other_users
from orch_node.protocol import values
from orch_node.protocol.agent import Claim
from orch_node.protocol.node_reports import NodeUsage, ReservedCores

MEMINFO = Path("/proc/meminfo")


def node_usage(claims: Path) -> NodeUsage:
    """Return the load, the free memory and the runs that have reserved cores of this node."""
    held = [*Claims(claims).read(), *claims_of_other_users()]
    by_run: dict[str, Claim] = {}
    for claim in held:  # several nodes of a run may be one machine
        by_run[claim.run] = claim.with_numbers(claim.numbers | by_run.get(claim.run, claim).numbers)
    return NodeUsage(
        load=os.getloadavg()[0],
        memory_available=memory_available(),
        reserved=tuple(ReservedCores(run=run, cpus=claim.cpus, gpus=claim.gpus) for run, claim in by_run.items()),
    )


def memory_available(meminfo: Path = MEMINFO) -> int:
    """Return the bytes of memory that new programs can use, as the kernel estimates them (proc(5), MemAvailable)."""
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0


def main(argv: list[str]) -> None:
    """Print the usage as JSON."""
    print(values.render(node_usage(Path(argv[0]))))
