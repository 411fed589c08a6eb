"""`orch provision`: look at all nodes, decide, bring them to one state, tell."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator import load, probe, wheelhouse
from orchestrator.backends import playbook
from orchestrator.backends.playbook import Playbook, TaskResult
from orchestrator.errors import OrchError, RequestError
from orchestrator.load.clusters import find_inventory
from orchestrator.load.facts import recorded_facts
from orchestrator.load.inventory import read_inventory
from orchestrator.plan_provision import Host, ProvisionPlan, ProvisionRequest, plan_provision
from orchestrator.probe import Probe
from orchestrator.report.provision import Change, NodeReport, Report, changes_of, explain, message_of
from orchestrator.share import TRAIN
from orchestrator.stack import Stack
from orchestrator.state import State

PROBE_TASK = "Look at the node"


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
    ports: Mapping[str, int]
    probes: dict[str, Probe] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    stopped: bool = False

    @property
    def alive(self) -> tuple[str, ...]:
        return tuple(name for name, node in self.nodes.items() if not node.failed)

    def run(self, name: str, variables: Mapping[str, Any], limit: tuple[str, ...] = ()) -> None:
        status = playbook.run(
            Playbook(
                name=name,
                inventory=self.source,
                variables=variables,
                facts=self.state.facts,
                log=self.log,
                check=self.request.check,
                limit=limit,
                environment=self.environment,
            ),
            self.take,
            self.listener.line,
        )
        self.stopped = status == "canceled"
        if status == "failed" and not any(node.failed for node in self.nodes.values()):
            raise OrchError(
                f"Ansible stopped before it reached a node: {last_error(self.log)}",
                hint=f"Its log: {self.log}",
            )

    def take(self, result: TaskResult) -> None:
        """Count one task of one node, and note what it said."""
        node = self.nodes.get(result.node)
        if node is None or result.task.startswith("Validating arguments"):
            return
        node.seconds += result.seconds
        node.changed += result.changed
        node.ok += result.state == "ok"
        if result.changed:
            node.changes += changes_of(result.result, result.task)
        if result.state != "ok":
            self.fail(result.node, message_of(result.result), result.task)
        elif result.task == PROBE_TASK and result.role == "preflight":
            self.probes[result.node] = probe.parse(
                result.node, result.result["probe"], skew(result)
            )
        self.listener.result(result)

    def fail(self, name: str, message: str, task: str = "") -> None:
        node = self.nodes[name]
        problem, hint = explain(message)
        node.failed += 1
        node.problem = f"{task}: {problem}" if task and problem else problem or task
        node.hint = hint

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


def provision(
    request: ProvisionRequest, listener: Listener, environment: Mapping[str, str]
) -> Report:
    """Bring all nodes of an inventory to the state of a stack. Raises OrchError.

    `environment`: variables of Ansible's own, such as where it finds the sudo password.
    """
    stack = load.stack(request.stack)
    session = open_session(request, listener, environment, "provision")
    cluster = session.source.stem
    with session.state.lock("provision"):
        session.run("preflight", {"orch_stack": stack.name, "preflight_facts_script": facts_script()})
        if session.probes and not session.stopped:
            go_on(session, cluster, stack)
    return session.report(cluster)


def go_on(session: Session, cluster: str, stack: Stack) -> None:
    """What follows the preflight: nothing, if a node that was reached did not pass it."""
    plan = plan_provision(
        session.request,
        cluster=cluster,
        stack=stack,
        hosts=tuple(host_of(session, name) for name in session.nodes),
        probes=tuple(session.probes[name] for name in session.nodes if name in session.probes),
    )
    for decision in plan.decisions:
        session.listener.note(decision.describe())
    if plan.problems:
        refuse(session, plan)
        return
    session.state.write_trust(cluster, plan.trust)
    houses = prepare_wheels(session, stack, plan)
    note_packages(session, plan)
    session.run("provision", {**plan.variables, **files(session, houses)}, session.alive)
    compare_fingerprints(session)


def refuse(session: Session, plan: ProvisionPlan) -> None:
    """No node is changed: those with problems say so, the others why they were left."""
    for problem in plan.problems:
        node = session.nodes[problem.node]
        node.failed += 1
        node.problem = "; ".join(filter(None, [node.problem, problem.text]))
        node.hint = " ".join(dict.fromkeys(filter(None, [node.hint, problem.hint])))
    culprits = ", ".join(dict.fromkeys(problem.node for problem in plan.problems))
    for node in session.nodes.values():
        if not node.failed:
            node.problem = f"left as it was: {culprits} did not pass the preflight"


def open_session(
    request: ProvisionRequest, listener: Listener, environment: Mapping[str, str], command: str
) -> Session:
    source = find_inventory(request.inventory)
    hosts = read_inventory(source)
    if not hosts:
        raise RequestError(f"Inventory {source} has no hosts.")
    state = State.of(source)
    return Session(
        request=request,
        source=source,
        state=state,
        log=state.log(command),
        listener=listener,
        environment=environment,
        nodes={name: NodeReport(node=name) for name in hosts},
        ports={name: port_of(variables) for name, variables in hosts.items()},
    )


def port_of(variables: Mapping[str, Any]) -> int:
    """The port at which the other nodes reach this one."""
    return int(variables.get("orch_port", variables.get("ansible_port", 22)))


def host_of(session: Session, name: str) -> Host:
    record = recorded_facts(session.source, name) or {}
    verified = record.get("verified") or {}
    return Host(name=name, port=session.ports[name], verified=verified)


def facts_script() -> str:
    return str(TRAIN / "facts.py")


def prepare_wheels(
    session: Session, stack: Stack, plan: ProvisionPlan
) -> dict[str, dict[str, object]]:
    """Platform -> what the stack role must know of its wheelhouse."""
    links = session.request.find_links
    houses = {}
    for platform in plan.platforms:
        if not wheelhouse.is_ready(stack, platform, links):
            session.listener.note(f"wheelhouse: resolving {stack.name} for {platform.key}")
        houses[platform.key] = wheelhouse.prepare(stack, platform, links).variables()
    return houses


def files(session: Session, houses: dict[str, dict[str, object]]) -> dict[str, Any]:
    """Variables that name files of this machine."""
    return {
        "orch_trust": str(session.state.trust),
        "orch_train": str(TRAIN),
        "orch_data": data_trees(session.request.data),
        "orch_wheelhouses": houses,
        "orch_index": [],
        "orch_verify_version": wheelhouse.sha256(TRAIN / "verify.py")[:12],
    }


def data_trees(paths: tuple[str, ...]) -> list[dict[str, str]]:
    trees = []
    for text in paths:
        path = Path(text)
        if not path.exists():
            raise RequestError(f"--data {text}: there is no such file or folder.")
        trees.append({"src": str(path.resolve()), "dest": f"data/{path.resolve().name}"})
    return trees


def note_packages(session: Session, plan: ProvisionPlan) -> None:
    """System packages are installed by a command that cannot tell what it would do."""
    if session.request.check:
        for name, missing in plan.missing.items():
            session.nodes[name].changes += [
                Change(what=f"package {package}", is_="missing", should="installed")
                for package in missing
            ]


def compare_fingerprints(session: Session) -> None:
    """All nodes have the same packages, or those that differ are named."""
    if session.request.check or session.stopped:
        return
    records = {name: recorded_facts(session.source, name) or {} for name in session.alive}
    found = {name: record.get("packages", {}) for name, record in records.items()}
    if len({record.get("fingerprint") for record in records.values()}) < 2:
        return
    first = next(iter(found))
    for name, packages in found.items():
        different = sorted(
            f"{package} {packages.get(package, 'missing')}"
            for package in packages.keys() | found[first].keys()
            if packages.get(package) != found[first].get(package)
        )
        if different:
            session.fail(name, f"its packages differ from {first}'s: {', '.join(different)}")


def skew(result: TaskResult) -> float:
    """Seconds that the node's clock lies outside the time in which it was asked; 0 if inside."""
    start, end = (dt.datetime.fromisoformat(text) for text in (result.start, result.end))
    start, end = (
        moment.replace(tzinfo=dt.timezone.utc) if moment.tzinfo is None else moment
        for moment in (start, end)
    )
    now = float(result.result["probe"]["time"])
    if now < start.timestamp():
        return now - start.timestamp()
    return max(0.0, now - end.timestamp())


def last_error(log: Path) -> str:
    lines = [line for line in log.read_text().splitlines() if "ERROR" in line or "fatal" in line]
    return " ".join(lines[-1:])[-500:] or "see its log"


def with_become(request: ProvisionRequest) -> ProvisionRequest:
    return replace(request, may_become=True)
