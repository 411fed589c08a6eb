"""Runs that the nodes of an inventory know, whoever started them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from orch_node.protocol import record as records
from orch_node.protocol import values
from orch_node.protocol.listing import ListedRun, Listing, Standing
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator import load
from orchestrator.errors import RequestError, did_you_mean
from orchestrator.model.cluster import Cluster
from orchestrator.model.hostlist import fold
from orchestrator.runs import store
from orchestrator.runs.rows import progress_words, row_of
from orchestrator.runs.state_files import PLAN
from orchestrator.targets.interface import Listed, Tell
from orchestrator.targets.ssh.access import write_ssh_config
from orchestrator.targets.ssh.followed import Unfollowed, followed
from orchestrator.targets.ssh.nodes import NodeAnswer, ask_all

LIST_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run on the nodes. `state` is None where node0 did not tell it. `unfollowed`: why the record
    is shown, but leads nowhere."""

    record: RunRecord
    state: str | None
    progress: Standing | None
    unfollowed: Unfollowed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the nodes say: run id -> the run; nodes that say nothing; runs that cannot be read, or
    are shown only, in words."""

    cluster: Cluster
    runs: dict[str, Found]
    silent: list[NodeAnswer]
    warnings: list[str]


def find(base: Path, name: str, inventory: str, tell: Tell) -> tuple[RunRecord, Path]:
    """A run by its id, or `last`; -> its record, and its folder here; `tell` gets what is wrong
    with records of nodes. Raises RequestError."""
    asked = ask_inventory(inventory)
    found = asked.runs
    for words in asked.cluster.damaged.values():
        tell(f"warning: {words}")
    names = sorted(found, key=lambda one: found[one].record.created)
    wanted = names[-1] if name == "last" and names else name
    if wanted not in found:
        raise RequestError(
            f"There is no run '{name}' on the nodes of {inventory}.",
            hint=did_you_mean(name, names[-10:]) if names else "",
        )
    if why := found[wanted].unfollowed:
        raise why
    record, folder = found[wanted].record, base / wanted
    if not (folder / PLAN).exists():
        store.keep(record, folder)
    check_own(store.load(folder).record, record)
    return record, folder


def check_own(own: RunRecord, said: RunRecord) -> None:
    """Raises Unfollowed where this controller has recorded other nodes than the nodes say."""
    here, there = ([host.node for host in one.nodes] for one in (own, said))
    if here != there:
        raise Unfollowed(
            f"{own.run_id} is recorded here on {fold(here)}, and is said to be on {fold(there)}.",
            hint="Without --inventory the record of this controller counts.",
        )


def list_runs(inventory: str) -> Listed:
    """The same for every controller; `state` is unknown where node0 did not answer."""
    asked = ask_inventory(inventory)
    ordered = sorted(asked.runs.values(), key=lambda one: (one.record.created, one.record.run_id))
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
        silent=tuple(f"{answer.node}: {answer.problem}" for answer in asked.silent),
        warnings=tuple(asked.warnings),
    )


def ask_inventory(inventory: str) -> Asked:
    cluster = load.cluster(inventory)
    write_ssh_config(cluster)
    commands = {node.name: list_command(node.python, node.root) for node in cluster.nodes}
    hosts = [RunNode(node=node.name, via=node.via) for node in cluster.nodes if not node.local]
    answers = ask_all(hosts, lambda host: commands[host.node], seconds=LIST_SECONDS)
    asked = Asked(cluster=cluster, runs={}, silent=[], warnings=list(cluster.damaged.values()))
    for answer in answers:
        if answer.value is None:
            asked.silent.append(answer)
        else:
            take(asked, answer, cluster)
    asked.warnings.extend(str(one.unfollowed) for one in asked.runs.values() if one.unfollowed)
    return asked


def list_command(python: str, root: str) -> tuple[str, ...]:
    return (python, f"{root}/train/node.py", "runs", f"{root}/runs")


def take(asked: Asked, answer: NodeAnswer, cluster: Cluster) -> None:
    """What a node says of its runs, as far as it can be read."""
    try:
        listing = values.read(Listing, answer.value, "its list of runs")
    except ProtocolError as error:
        asked.silent.append(NodeAnswer(node=answer.node, value=None, problem=str(error)))
        return
    for run in listing.runs:
        try:
            add(asked.runs, found(run, cluster, answer.node), answer.node)
        except ProtocolError as error:
            asked.warnings.append(damaged_words(answer.node, str(error)))
    for one in listing.damaged:
        asked.warnings.append(
            damaged_words(answer.node, f"{one.folder!r:.150}: {one.problem!r:.200}")
        )


def damaged_words(node: str, problem: str) -> str:
    return (
        f"{node}: a run is damaged and left out: {problem} "
        "(`orch clean --inventory` moves its folder aside)"
    )


def found(run: ListedRun, cluster: Cluster, node: str) -> Found:
    """Raises ProtocolError."""
    record = records.parse(run.record)
    if not writable(values.record(record)):
        raise ProtocolError(f"the record of {record.run_id} holds text that is no Unicode.")
    why = None
    try:
        record = followed(record, cluster, told_by=node)
    except Unfollowed as error:
        why = error
    state = run.state if record.node0.node == node else None
    return Found(record=record, state=state, progress=run.progress, unfollowed=why)


def writable(value: object) -> bool:
    """Whether its text can be printed and written to files."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def add(found: dict[str, Found], run: Found, node: str) -> None:
    """One node's word on a run; node0's counts, since only it knows the run's state. Where nodes
    name different nodes for one run, nobody can know which of them are right."""
    id_ = run.record.run_id
    before = found.get(id_)
    if before is None or (before.unfollowed and not run.unfollowed):
        found[id_] = run
    elif run.unfollowed:
        return
    elif [one.node for one in before.record.nodes] != [one.node for one in run.record.nodes]:
        why = before.unfollowed or Unfollowed(
            f"{node} and another node name different nodes for {id_}.",
            hint="`orch runs` shows who tells of it; the controller that has started the run needs "
            "no --inventory.",
        )
        found[id_] = replace(before, unfollowed=why)
    elif node == run.record.node0.node:
        found[id_] = replace(run, unfollowed=before.unfollowed)
