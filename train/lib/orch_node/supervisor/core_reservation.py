"""Reserve the cores of a run on all of its nodes before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from orch_node.protocol.agent import CLAIM, Claim, Request, Response
from orch_node.protocol.layout import RunLayout
from orch_node.protocol.outcome import FAILED, REFUSED, STOPPED, Outcome
from orch_node.supervisor.agents import Agents

TICK_SECONDS = 0.1


def reserve_cores(run_dir: Path, layout: RunLayout, agents: Agents, stopped: Callable[[], bool]) -> Outcome | None:
    """Claim the cores of a run on all of its nodes; return why that failed, or None.

    All runs ask the nodes in the same order, so of two runs that start together one gets all nodes.
    """
    for node in sorted([*layout.node_names, *layout.spare_hosts]):
        response = request_claim(agents, node, claim_of(str(run_dir), layout, node), stopped)
        if stopped():
            return Outcome(STOPPED)
        if response is None:
            return Outcome(FAILED, problem=f"{node} cannot be reached: {agents.lost[node]}")
        if response.taken:
            return Outcome(REFUSED, problem=describe_conflicts(node, response.taken))
    return None


def request_claim(agents: Agents, node: str, claim: Claim, stopped: Callable[[], bool]) -> Response | None:
    """Return a node's response, or None once the node is lost. Connecting may take a while."""
    channel = agents.channels[node]
    if node not in agents.lost:
        channel.request(Request(CLAIM, claim=claim))
    while node not in agents.lost and not stopped():
        if response := channel.responses.get(CLAIM):
            return response
        agents.pipes.pump(TICK_SECONDS)
        agents.watch()
    return None


def claim_of(run_dir: str, layout: RunLayout, node: str) -> Claim:
    """Return the claim on the cores and GPUs of a node, for its ranks and their oneCCL workers.

    The cores of a spare node are those of the nodes that it may replace.
    """
    model = layout.node_names[0] if node in layout.spare_hosts else node
    ranks = layout.ranks_on(model)
    cpus = {cpu for placement in ranks for cpu in (*placement.cpus, *placement.worker_cpus)}
    gpus = {placement.gpu for placement in ranks if placement.gpu is not None}
    run = os.path.basename(run_dir)
    return Claim(run=run, run_dir=run_dir, cpus=tuple(sorted(cpus)), gpus=tuple(sorted(gpus)))


def describe_conflicts(node: str, conflicts: Iterable[Claim]) -> str:
    """Return which runs have the cores or GPUs of a node."""
    parts = [f"run {claim.run} has {claim.describe()}" for claim in conflicts]
    return f"{node} is taken: {'; '.join(parts)}"
