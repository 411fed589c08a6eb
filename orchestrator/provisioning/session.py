"""What provisioning and syncing share: playbooks are run, and each node's part is counted."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError, RequestError
from orchestrator.load.clusters import NO_HOSTS, find_inventory
from orchestrator.load.facts import DamagedRecord, NotWhatANodeSays, ProofFacts, read_record, record_json
from orchestrator.load.inventory import read_inventory
from orchestrator.model.printable import one_line
from orchestrator.provisioning import playbook, probe, proofs
from orchestrator.provisioning.plan import ProvisionRequest
from orchestrator.provisioning.playbook import Playbook
from orchestrator.provisioning.probe import Probe
from orchestrator.provisioning.renewal import renewing
from orchestrator.provisioning.report import (
    KEY_FILE,
    LET_IN,
    NodeReport,
    Report,
    changes_of,
    explain,
    fill_in_host,
    message_of,
)
from orchestrator.provisioning.task_result import TaskResult
from orchestrator.state import State, write_private

VARIABLE = "orch_facts"  # what the roles record and verify call them
VALIDATION = "Validating arguments"  # Ansible's own task, before each role
PROBE_TASK = "Look at the node"
# Only these tasks say what is kept of a node: a module's result comes from the node, which could
# name any variable in it.
SET_FACT = ("set_fact", "ansible.builtin.set_fact", "ansible.legacy.set_fact")
RECORDING, PROBING = ("record", "verify"), ("preflight", "record")
STRANGE = (
    "Nothing of it was used. Look at the node by hand before it gets keys or secrets: its Python, "
    "or what answers in its place, is not what it should be."
)
LOCK_TASK, RELEASE_TASK = "Make the lock present", "Make the lock absent"


@dataclass(slots=True, kw_only=True)
class Listener:
    """Where progress goes while the work is done."""

    note: Callable[[str], None] = lambda text: None
    result: Callable[[TaskResult], None] = lambda result: None
    line: Callable[[str], None] = lambda line: None


@dataclass(slots=True, kw_only=True)
class Session:
    """One provisioning: what is known so far, node by node."""

    request: ProvisionRequest
    source: Path
    state: State
    log: Path
    listener: Listener
    environment: Mapping[str, str]
    nodes: dict[str, NodeReport]
    hosts: Mapping[str, Mapping[str, Any]]
    probes: dict[str, Probe] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    stopped: bool = False
    locked: set[str] = field(default_factory=set)

    @property
    def alive(self) -> tuple[str, ...]:
        return tuple(name for name, node in self.nodes.items() if not node.failed)

    def run_locked(self, name: str, variables: Mapping[str, Any]) -> None:
        """A playbook that takes the nodes' locks first and releases them last."""
        variables = {**variables, "orch_owner": self.state.owner(name)}
        try:
            with renewing(lambda: self.renew_locks(variables)):
                self.run(name, variables, self.alive)
        finally:
            # What failed or was interrupted did not come to the release.
            if self.locked:
                unlock = self.playbook("unlock", variables, tuple(sorted(self.locked)))
                playbook.run(replace(unlock, check=False), lambda _: None, self.listener.line)

    def renew_locks(self, variables: Mapping[str, Any]) -> None:
        """Say on the nodes that this controller still lives; a node that another has is told."""
        if names := tuple(sorted(self.locked)):
            lock = replace(self.playbook("lock", variables, names), check=False)
            playbook.run(lock, self.take_renewal, lambda _: None)

    def take_renewal(self, result: TaskResult) -> None:
        if result.state == "failed":
            self.listener.note(f"{result.node}: {message_of(result.result)}")

    def playbook(self, name: str, variables: Mapping[str, Any], limit: tuple[str, ...] = ()) -> Playbook:
        return Playbook(
            name=name,
            inventory=self.source,
            variables=variables,
            state=self.state.folder,
            log=self.log,
            check=self.request.check,
            limit=limit,
            environment=self.environment,
        )

    def run(self, name: str, variables: Mapping[str, Any], limit: tuple[str, ...] = ()) -> None:
        status = playbook.run(self.playbook(name, variables, limit), self.take, self.listener.line)
        self.stopped = status == "canceled"
        if status == "failed" and not any(node.failed for node in self.nodes.values()):
            raise OrchError(
                f"Ansible stopped before it reached a node: {last_error(self.log)}", hint=f"Its log: {self.log}"
            )

    def take(self, result: TaskResult) -> None:
        """Count one task of one node, and note what it said."""
        node = self.nodes.get(result.node)
        if node is None or (is_ansibles_own(result) and result.state == "ok"):
            return
        node.seconds += result.seconds
        node.changed += result.changed
        node.ok += result.state == "ok"
        if result.changed:
            node.changes += changes_of(result.result, result.task)
        self.note_lock(result)
        if result.state != "ok":
            self.fail(result.node, message_of(result.result), result.task)
        else:
            self.learn(result)
        self.listener.result(result)

    def learn(self, result: TaskResult) -> None:
        """Keep what the task says of its node, if it is what a node can say."""
        try:
            if result.action in SET_FACT and result.role in RECORDING:
                facts = result.result.get("ansible_facts")
                said = facts.get(VARIABLE) if isinstance(facts, dict) else None
                text = record_json(said, result.node)
                write_private(self.state.record(result.node), text)
            elif result.task.startswith(PROBE_TASK) and result.role in PROBING:
                answer = probe.parse(result.node, result.result.get("probe"))
                if result.role == "preflight":
                    seen = probe.probe_of(result.node, answer, skew(result, answer.time))
                    self.probes[result.node] = seen
            elif result.task.startswith(proofs.TASK) and result.role == "fabric":
                self.keep_proofs(result)
        except NotWhatANodeSays as error:
            self.fail(result.node, error.message, result.task)
            self.nodes[result.node].hint = STRANGE

    def keep_proofs(self, result: TaskResult) -> None:
        """A trial that did not end well is no failure of a node: it will be tried again."""
        if result.result.get("rc") != 0:
            words, _ = explain(message_of(result.result))
            self.listener.note(f"which fabrics carry traffic could not be tried: {words}")
            return
        answer = proofs.parse(result.node, result.result)
        for name, found in answer.nodes.items():
            if name in self.nodes:
                self.keep_proof(name, found, answer.key)

    def keep_proof(self, name: str, found: Mapping[str, ProofFacts], key: str) -> None:
        path = self.state.record(name)
        try:
            record = read_record(path)
        except DamagedRecord as error:
            self.listener.note(error.describe())
            return
        if record:
            write_private(path, proofs.with_proofs(record, found, key))
        for fabric, proof in found.items():
            self.listener.note(f"{name}: {fabric}: {proof.failed or 'carries traffic'}")

    def note_lock(self, result: TaskResult) -> None:
        """Keep in mind which nodes must be released, as far as they can be reached."""
        if result.state == "unreachable" or result.task == RELEASE_TASK:
            self.locked.discard(result.node)
        elif result.task == LOCK_TASK and result.state == "ok":
            self.locked.add(result.node)
            if note := result.result.get("note"):
                self.listener.note(f"{result.node}: {one_line(str(note))}")

    def fail(self, name: str, message: str, task: str = "") -> None:
        node = self.nodes[name]
        problem, hint = explain(message)
        node.failed += 1
        variables = self.hosts.get(name, {})
        key = str(variables.get(KEY_FILE, ""))
        if LET_IN in message and key and "{{" not in key and not Path(key).expanduser().is_file():
            problem = f"its key file {key} does not exist on this machine"
            hint = f"Correct {KEY_FILE} in the inventory."
        node.problem = f"{task}: {problem}" if task and problem else problem or task
        node.hint = fill_in_host(hint, name, variables)

    def report(self, cluster: str) -> Report:
        failed = any(node.failed for node in self.nodes.values())
        drift = self.request.check and any(node.changes for node in self.nodes.values())
        state = "stopped" if self.stopped else "failed" if failed else "drift" if drift else "done"
        return Report(
            cluster=cluster,
            check=self.request.check,
            state=state,
            seconds=round(time.monotonic() - self.began, 2),
            log=str(self.log),
            nodes=tuple(self.nodes.values()),
        )


def open_session(
    request: ProvisionRequest, listener: Listener, environment: Mapping[str, str], command: str
) -> Session:
    source = find_inventory(request.inventory)
    hosts = read_inventory(source)
    if not hosts:
        raise RequestError(f"Inventory {source} has no hosts.", hint=NO_HOSTS)
    state = State.of(source)
    return Session(
        request=request,
        source=source,
        state=state,
        log=state.log(command),
        listener=listener,
        environment=environment,
        nodes={name: NodeReport(node=name) for name in hosts},
        hosts=hosts,
    )


def is_ansibles_own(result: TaskResult) -> bool:
    """What comes before a role's own tasks, and changes nothing."""
    return result.task.startswith(VALIDATION) or result.action.endswith("include_role")


def skew(result: TaskResult, now: float) -> float:
    """Seconds that the node's clock lies outside the time in which it was asked; 0 if inside."""
    start, end = (dt.datetime.fromisoformat(text) for text in (result.start, result.end))
    start, end = (
        moment.replace(tzinfo=dt.timezone.utc) if moment.tzinfo is None else moment for moment in (start, end)
    )
    if now < start.timestamp():
        return now - start.timestamp()
    return max(0.0, now - end.timestamp())


def last_error(log: Path) -> str:
    lines = [line for line in log.read_text().splitlines() if "ERROR" in line or "fatal" in line]
    return " ".join(lines[-1:])[-500:] or "see its log"
