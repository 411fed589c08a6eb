"""Reserve the cores of a run on all of its nodes before it starts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from orch_node.protocol.agent import CLAIM, Claim, Request
from orch_node.protocol.layout import RunLayout
from orch_node.protocol.outcome import FAILED, REFUSED, STOPPED, Outcome

if TYPE_CHECKING:
    from orch_node.supervisor.supervisor import Supervisor

TICK_SECONDS = 0.1


def reserve_cores(run: Supervisor) -> Outcome | None:
    """Claim the cores of a run on all of its nodes; return why that failed, or None.

    All runs ask the nodes in the same order, so of two runs that start together one gets all nodes.
    """
    agents = run.agents
    for node in sorted([*run.layout.node_names, *run.layout.spares]):
        channel = agents.channels[node]
        if node not in agents.lost:
            channel.request(Request(CLAIM, claim=claim_of(str(run.run_dir), run.layout, node)))
        # Connecting may take a while.
        while node not in agents.lost and CLAIM not in channel.responses and not run.is_to_end():
            agents.pipes.pump(TICK_SECONDS)
            agents.watch()
        if run.is_to_end():
            return Outcome(STOPPED)
        if node in agents.lost:
            return Outcome(FAILED, problem=f"{node} cannot be reached: {agents.lost[node]}")
        if taken := channel.responses[CLAIM].taken:
            return Outcome(REFUSED, problem=describe_conflicts(node, taken))
    return None


def claim_of(run_dir: str, layout: RunLayout, node: str) -> Claim:
    """Return the claim on the cores and GPUs of a node, for its ranks and their oneCCL workers.

    The cores of a spare node are those of the nodes that it may replace.
    """
    model = layout.node_names[0] if node in layout.spares else node
    ranks = layout.ranks_on(model)
    cpus = {cpu for placement in ranks for cpu in (*placement.cpus, *placement.worker_cpus)}
    gpus = {placement.gpu for placement in ranks if placement.gpu is not None}
    run = os.path.basename(run_dir)
    return Claim(run=run, run_dir=run_dir, cpus=tuple(sorted(cpus)), gpus=tuple(sorted(gpus)))


def describe_conflicts(node: str, conflicts: Iterable[Claim]) -> str:
    """Return which runs have the cores or GPUs of a node."""
    parts = [f"run {claim.run} has {claim.describe()}" for claim in conflicts]
    return f"{node} is taken: {'; '.join(parts)}"
