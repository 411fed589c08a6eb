"""Runs that the nodes of an inventory know, whoever started them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orch_node.protocol import record as records
from orch_node.protocol import values
from orch_node.protocol.listing import Listing, Standing
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator import load
from orchestrator.errors import RequestError, did_you_mean
from orchestrator.model.cluster import Cluster
from orchestrator.runs import store
from orchestrator.runs.record import seen_from
from orchestrator.runs.rows import progress_words, row_of
from orchestrator.targets.interface import Listed
from orchestrator.targets.ssh.access import write_ssh_config
from orchestrator.targets.ssh.nodes import NodeAnswer, ask_all

LIST_SECONDS = 20.0
Ways = Mapping[str, tuple[str, ...]]  # node -> how this controller reaches it


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run on the nodes. `state` is None where node0 did not tell it."""

    record: RunRecord
    state: str | None
    progress: Standing | None


def find(base: Path, name: str, inventory: str) -> tuple[RunRecord, Path]:
    """A run by its id, or `last`; -> its record, and its folder here. Raises RequestError."""
    found, _ = ask_inventory(inventory)
    names = sorted(found, key=lambda one: found[one].record.created)
    wanted = names[-1] if name == "last" and names else name
    if wanted not in found:
        raise RequestError(
            f"There is no run '{name}' on the nodes of {inventory}.",
            hint=did_you_mean(name, names[-10:]) if names else "",
        )
    record, folder = found[wanted].record, base / wanted
    if not (folder / store.PLAN).exists():
        store.keep(record, folder)
    return record, folder


def list_runs(inventory: str) -> Listed:
    """The same for every controller; `state` is unknown where node0 did not answer."""
    found, silent = ask_inventory(inventory)
    ordered = sorted(found.values(), key=lambda one: (one.record.created, one.record.run_id))
    return Listed(
        rows=tuple(
            row_of(
                one.record,
                state=one.state or "unknown",
                nodes=(host.node for host in one.record.nodes),
                progress=progress_words(one.progress),
                folder=one.record.run_dir,
            )
            for one in ordered
        ),
        silent=tuple(f"{answer.node}: {answer.problem}" for answer in silent),
    )


def ask_inventory(inventory: str) -> tuple[dict[str, Found], list[NodeAnswer]]:
    """Run id -> what the nodes say of it, and the nodes of which not all is known."""
    cluster = load.cluster(inventory)
    write_ssh_config(cluster)
    commands = {node.name: list_command(node.python, node.root) for node in cluster.nodes}
    hosts = [RunNode(node=node.name, via=node.via) for node in cluster.nodes if not node.local]
    answers = ask_all(hosts, lambda host: commands[host.node], seconds=LIST_SECONDS)
    found: dict[str, Found] = {}
    silent = [answer for answer in answers if answer.value is None]
    for answer in answers:
        for run in runs_of(answer, ways(cluster)):
            if isinstance(run, Found):
                add(found, run, answer.node)
            else:
                silent.append(NodeAnswer(node=answer.node, value=None, problem=run))
    return found, silent


def list_command(python: str, root: str) -> tuple[str, ...]:
    return (python, f"{root}/train/node.py", "runs", f"{root}/runs")


def ways(cluster: Cluster) -> Ways:
    return {node.name: node.via for node in cluster.nodes}


def runs_of(answer: NodeAnswer, via: Ways) -> Iterator[Found | str]:
    """The runs that a node knows, and in words what cannot be read of its answer."""
    if answer.value is None:
        return
    try:
        runs = values.read(Listing, answer.value, "its list of runs").runs
    except ProtocolError as error:
        yield str(error)
        return
    for run in runs:
        try:
            record = seen_from(records.parse(run.record), via)
            yield Found(record=record, state=run.state, progress=run.progress)
        except ProtocolError as error:
            yield str(error)


def add(found: dict[str, Found], run: Found, node: str) -> None:
    """One node's word on a run; node0's counts, since only it knows the run's state."""
    if run.record.run_id not in found or node == run.record.node0.node:
        found[run.record.run_id] = run
