"""Sessions of provisioning and syncing, which run playbooks and collect the results of each node."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError, RequestError
from orchestrator.files import State, write_private
from orchestrator.load import records
from orchestrator.load.clusters import find_inventory
from orchestrator.load.inventory import read_inventory
from orchestrator.model.decision import Finding, finding_of
from orchestrator.model.printable import one_line
from orchestrator.model.provision_report import NodeReport, Report
from orchestrator.provisioning import messages, playbook, probe
from orchestrator.provisioning.plan import ProvisionRequest
from orchestrator.provisioning.playbook import Playbooks, TaskResult
from orchestrator.provisioning.probe import Probe
from orchestrator.provisioning.ssh_settings import resolve_connection

RECORD_VARIABLE = "orch_facts"  # set by the roles record and verify
VALIDATION = "Validating arguments"  # Ansible's task before each role
PROBE_TASK = "Probe the node"
COMPARE_TASK = "Compare the environment with the lock"
SEND_TASK = "Send files"
# A record is taken from these tasks only: the result of any other module comes from the node, which could name any
# variable in it.
SET_FACT = ("set_fact", "ansible.builtin.set_fact", "ansible.legacy.set_fact")
RECORDING_ROLES, PROBING_ROLES = ("record", "verify"), ("preflight", "record")
LOCK_TASK, RELEASE_TASK = "Make the lock present", "Make the lock absent"


@dataclass(slots=True, kw_only=True)
class Listener:
    """Callbacks for progress."""

    note: Callable[[str], None] = lambda text: None  # a message for the user
    result: Callable[[TaskResult], None] = lambda result: None
    line: Callable[[str], None] = lambda line: None  # of Ansible's output


class Session:
    """An execution of `orch provision` or `orch sync`, with the results of each node so far."""

    def __init__(self, request: ProvisionRequest, listener: Listener, env: Mapping[str, str], command: str) -> None:
        """Read the inventory of a request.

        Args:
            request: the options of the command.
            listener: receives the progress.
            env: of Ansible.
            command: the name of the command.

        Raises:
            RequestError: if there is no such inventory, or it has no hosts.
        """
        self.request = request
        self.listener = listener
        self.source = find_inventory(request.inventory)
        self.hosts = read_inventory(self.source)  # with their variables
        if not self.hosts:
            raise RequestError.about("empty-inventory", source=self.source)
        self.state = State.of(self.source)
        self.log = self.state.log(command)
        self.playbooks = Playbooks(
            inventory=self.source, state=self.state.folder, log=self.log, check=request.dry_run, environment=env
        )
        self.nodes = {name: NodeReport(node=name) for name in self.hosts}
        self.probes: dict[str, Probe] = {}
        self.began = time.monotonic()
        self.stopped = False  # by the user
        self.locked: set[str] = set()  # nodes to unlock

    @property
    def alive(self) -> tuple[str, ...]:
        """Return the nodes without a failure."""
        return tuple(name for name, node in self.nodes.items() if not node.failed)

    def run_locked(self, name: str, variables: Mapping[str, Any]) -> None:
        """Run a playbook that locks the nodes first and unlocks them at its end."""
        variables = {**variables, "orch_owner": self.state.owner(name)}
        try:
            self.run(name, variables, self.alive)
        finally:
            # Nodes that failed or were interrupted did not reach the end of the playbook.
            if self.locked:
                unchecked, nodes = replace(self.playbooks, check=False), sorted(self.locked)
                playbook.run(unchecked, "unlock", variables, lambda _: None, self.listener.line, limit=nodes)

    def run(self, name: str, variables: Mapping[str, Any], limit: tuple[str, ...] = ()) -> None:
        """Run a playbook and collect its results.

        Raises:
            OrchError: if Ansible stops before it reaches a node.
        """
        status = playbook.run(self.playbooks, name, variables, self.add_result, self.listener.line, limit=limit)
        self.stopped = status == "canceled"
        if status == "failed" and not any(node.failed for node in self.nodes.values()):
            errors = [line for line in self.log.read_text().splitlines() if "ERROR" in line or "fatal" in line]
            reason = errors[-1][-500:] if errors else "it printed no error."
            raise OrchError(f"Ansible stopped before it reached a node: {reason}", hint=f"See its log: {self.log}")

    def add_result(self, result: TaskResult) -> None:
        """Add the result of one task to the report of its node."""
        node = self.nodes.get(result.node)
        # A task of Ansible that precedes the tasks of a role.
        internal = result.task.startswith(VALIDATION) or result.action.endswith("include_role")
        if node is None or (internal and result.state == "ok"):
            return
        node.seconds += result.seconds
        node.changed += result.changed
        node.ok += result.state == "ok"
        if result.changed:
            node.changes += messages.changes_of(result.result, result.task)
        self.track_lock(result)
        if result.state != "ok":
            self.fail(result.node, messages.message_of(result.result), result.task)
        else:
            self.store_result(result)
        self.listener.result(result)

    def store_result(self, result: TaskResult) -> None:
        """Store the record, probe or fabric results that a task returns; an invalid one fails its node."""
        try:
            if result.action in SET_FACT and result.role in RECORDING_ROLES:
                facts = result.result.get("ansible_facts")
                record = facts.get(RECORD_VARIABLE) if isinstance(facts, dict) else None
                write_private(self.state.record(result.node), json.dumps(records.dump(recorded(record, result.node))))
            elif result.task.startswith(PROBE_TASK) and result.role in PROBING_ROLES:
                parsed = probe.parse_probe(result.node, result.result.get("probe"))
                if result.role == "preflight":
                    self.probes[result.node] = parsed.model_copy(update={"skew": clock_skew(result, parsed.time)})
            elif result.task.startswith(probe.FABRIC_TASK) and result.role == "fabric":
                self.store_fabric_results(result)
            elif result.task == COMPARE_TASK and result.role == "stack" and not self.request.dry_run:
                self.note_removed_packages(result)
            elif result.task.startswith(SEND_TASK) and result.role == "transfer":
                self.note_direct_transfers(result)
        except records.InvalidResponse as error:
            invalid = OrchError.about("invalid-result", task=result.task, reason=error.message)
            self.nodes[result.node].fail(finding_of(invalid, result.node))
        except RequestError as error:
            self.nodes[result.node].fail(finding_of(error, result.node))

    def store_fabric_results(self, result: TaskResult) -> None:
        """Add the results of the fabric checks to the nodes' records."""
        if result.result.get("rc") != 0:
            # Not a failure of a node: the next `orch provision` repeats the checks.
            reason, _ = messages.explain(messages.message_of(result.result))
            self.listener.note(f"the fabrics could not be checked: {reason}")
            return
        parsed = probe.parse_fabrics(result.node, result.result)
        for name in sorted(parsed.nodes.keys() & self.nodes.keys()):
            path, fabrics = self.state.record(name), parsed.nodes[name]
            try:
                if record := records.read_record(path):
                    verified = (record.verified or records.Verified()).model_copy(update={"fabrics": parsed.key})
                    write_private(path, json.dumps(records.dump(replace(record, proved=fabrics, verified=verified))))
            except records.DamagedRecord as error:
                self.listener.note(error.describe())
                continue
            for fabric, proof in fabrics.items():
                self.listener.note(f"{name}: {fabric}: {proof.failed or 'works'}")

    def note_removed_packages(self, result: TaskResult) -> None:
        """Report the packages that are about to be removed, because the stack does not have them."""
        changes = messages.changes_of(result.result, result.task)
        if packages := ", ".join(f"{change.what} {change.is_}" for change in changes if change.should == "absent"):
            reason = f"which neither stack '{self.request.stack}' nor --requirements nor orch_requirements has"
            self.listener.note(f"{result.node}: removes {packages}, {reason}")

    def note_direct_transfers(self, result: TaskResult) -> None:
        """Report the nodes to which the first node could not pass files on."""
        problems = result.result.get("problems")
        for name, reason in problems.items() if isinstance(problems, dict) else ():
            if name in self.nodes:
                problem = f"they did not arrive through {result.node}: {one_line(str(reason))}"
                self.listener.note(f"{name}: gets its files directly from this machine, because {problem}")

    def track_lock(self, result: TaskResult) -> None:
        """Record which nodes have to be unlocked and can be reached."""
        if result.state == "unreachable" or result.task == RELEASE_TASK:
            self.locked.discard(result.node)
        elif result.task == LOCK_TASK and result.state == "ok":
            self.locked.add(result.node)
            if note := result.result.get("note"):
                self.listener.note(f"{result.node}: {one_line(str(note))}")

    def fail(self, name: str, message: str, task: str = "") -> None:
        """Record a failure of a node, with the problem and a hint for its message."""
        problem, hint = messages.explain(message)
        variables = self.hosts.get(name, {})
        key = str(variables.get(messages.KEY_FILE, ""))
        if messages.PERMISSION_DENIED in message and key and "{{" not in key and not Path(key).expanduser().is_file():
            problem = f"its key file {key} does not exist on this machine"
            hint = f"Correct {messages.KEY_FILE} in the inventory."
        settings = messages.ssh_settings(name, variables) if "KNOWN_HOSTS" in hint else None
        hint = messages.fill_in_host(hint, name, variables, settings)
        text = ": ".join(filter(None, [task, problem]))
        self.nodes[name].fail(Finding(subject=name, message=text, hint=hint))

    def report(self, cluster: str) -> Report:
        """Return the report of all nodes."""
        failed = any(node.failed for node in self.nodes.values())
        drift = self.request.dry_run and any(node.changes for node in self.nodes.values())
        state = "stopped" if self.stopped else "failed" if failed else "drift" if drift else "done"
        return Report(
            cluster=cluster,
            check=self.request.dry_run,
            state=state,
            seconds=round(time.monotonic() - self.began, 2),
            log=str(self.log),
            nodes=tuple(self.nodes.values()),
        )


def recorded(facts: object, node: str) -> records.NodeRecord:
    """Return the record of a node with the settings of the user's ssh configuration.

    Raises:
        InvalidResponse: if the facts are invalid.
        RequestError: if orch's own connections cannot use the settings.
    """
    record = records.validate(records.NodeRecord, facts, f"the facts of {node}")
    if record.connection is None:
        return record
    connection = resolve_connection(record.connection)
    records.connection_blocks(node, connection)
    return replace(record, connection=connection)


def clock_skew(result: TaskResult, now: float) -> float:
    """Return the seconds by which a node's time lies outside the duration of its task; 0 if inside."""
    moments = (dt.datetime.fromisoformat(text).replace(tzinfo=dt.timezone.utc) for text in (result.start, result.end))
    start, end = (moment.timestamp() for moment in moments)  # of ansible-runner, in UTC
    return now - min(max(now, start), end)
