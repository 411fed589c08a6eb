"""`orch provision`: look at all nodes, decide, bring them to one state, tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.files import sha256
from orchestrator.load.facts import recorded_facts
from orchestrator.load.inventory import HAS_PASSWORD
from orchestrator.paths import LIB, SHARE, STANDALONE, TRAIN
from orchestrator.provisioning import fabric_checks, slim, wheelhouse
from orchestrator.provisioning.plan import Host, Platform, ProvisionPlan, ProvisionRequest, plan_provision
from orchestrator.provisioning.report import Change, Report
from orchestrator.provisioning.session import Listener, Session, open_session
from orchestrator.stacks.stack import Stack


def provision(request: ProvisionRequest, listener: Listener, environment: Mapping[str, str]) -> Report:
    """Bring all nodes of an inventory to the state of a stack. Raises OrchError.

    `environment`: variables of Ansible's own, such as where it finds the sudo password.
    """
    data_trees(request.data)  # what is not there is told before the nodes are looked at
    session = open_session(request, listener, environment, "provision")
    flavours = load.mpi_flavours({name: session.hosts[name] for name in session.nodes})
    stack = load.stack(request.stack).with_mpi(flavours)
    cluster = session.source.stem
    image = image_of(session)
    hosts = tuple(host_of(session, name) for name in session.nodes)
    with session.state.lock("provision"):
        session.run(
            "preflight",
            {
                "orch_stack": stack.name,
                "orch_docker_asked": bool(request.docker_load),
                "preflight_facts_script": facts_script(),
            },
        )
        if session.probes and not session.stopped:
            go_on(session, cluster, stack, hosts, image)
    return session.report(cluster)


def image_of(session: Session) -> dict[str, Any]:
    """What the role docker must know of the image that runs take. Raises RequestError."""
    said = load.common_docker_variable({name: session.hosts[name] for name in session.nodes})
    name = said.image if said else ""
    path = session.request.docker_load or (said.load if said else "")
    if not path:
        return {"image": name, "file": {}}
    # A file of the flag's may hold another image than the one that the inventory names.
    file = load.image_file(path, "" if session.request.docker_load else name)
    record = {"folder": str(file.path.parent), "name": file.path.name, "sha256": sha256(file.path), "id": file.id}
    return {"image": file.name, "file": record}


def go_on(session: Session, cluster: str, stack: Stack, hosts: tuple[Host, ...], image: dict[str, Any]) -> None:
    """What follows the preflight: nothing, if a node that was reached did not pass it."""
    plan = plan_provision(
        session.request,
        cluster=cluster,
        stack=stack,
        hosts=hosts,
        probes=tuple(session.probes[name] for name in session.nodes if name in session.probes),
    )
    for decision in plan.decisions:
        session.listener.note(decision.describe())
    if plan.problems:
        refuse(session, plan)
        return
    session.state.write_trust(cluster, plan.trust)
    houses = prepare_wheels(session, stack, plan.platforms)
    note_packages(session, plan)
    variables = {**plan.variables, **files(session, houses), "orch_image": image}
    session.run_locked("provision", variables)
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


def host_of(session: Session, name: str) -> Host:
    record = recorded_facts(session.source, name, session.listener.note)
    verified = record.verified if record else None
    variables = session.hosts[name]
    return Host(
        name=name,
        port=port_of(variables),
        verified=verified.model_dump() if verified else {},
        proved=record.model_dump(mode="json")["proved"] if record else {},
        may_become=HAS_PASSWORD in variables,
        limits=load.limits(name, variables),
    )


def port_of(variables: Mapping[str, Any]) -> int:
    """The port at which the other nodes reach this one."""
    return int(variables.get("orch_port", variables.get("ansible_port", 22)))


def facts_script() -> str:
    return str(STANDALONE / "facts.py")


def prepare_wheels(session: Session, stack: Stack, platforms: tuple[Platform, ...]) -> dict[str, dict[str, object]]:
    """Platform -> what the stack role must know of its wheelhouse."""
    links = session.request.find_links
    houses = {}
    for platform in platforms:
        for line in wheelhouse.slow_steps(stack, platform, links):
            session.listener.note(line)
        own = wheelhouse.unpublished_packages(stack, links)
        house = wheelhouse.prepare_wheelhouse(stack, platform, links)
        if not session.request.index:  # an index has the wheels as they were published
            house = slim.slim_wheelhouse(house)
        houses[platform.key] = house.variables(own)
    return houses


def files(session: Session, houses: dict[str, dict[str, object]]) -> dict[str, Any]:
    """Variables that name files of this machine."""
    return {
        "orch_trust": str(session.state.trust),
        "orch_train": str(TRAIN),
        "orch_data": data_trees(session.request.data),
        "orch_wheelhouses": houses,
        "orch_wheels": "index" if session.request.index else "wheelhouse",
        "orch_stack_indexes": stack_indexes(load.stack(session.request.stack)),
        "orch_verify_version": sha256(LIB / "orch_node" / "verify.py")[:12],
        "orch_fabric_version": fabric_checks.checks_version(SHARE),
    }


def stack_indexes(stack: Stack) -> list[str]:
    """What nodes with a route to an index need besides their own, as options of uv."""
    return [word for index in stack.indexes for word in (f"--{index.option}", index.url)]


def data_trees(paths: tuple[str, ...]) -> list[dict[str, str]]:
    trees = []
    for text in paths:
        path = Path(text)
        if not path.exists():
            raise RequestError(
                f"--data {text}: there is no such file or folder.",
                hint="A path is relative to the folder that orch is called in.",
            )
        trees.append({"src": str(path.resolve()), "dest": f"data/{path.resolve().name}"})
    return trees


def note_packages(session: Session, plan: ProvisionPlan) -> None:
    """System packages are installed by a command that cannot tell what it would do."""
    if session.request.check:
        for name, missing in plan.missing.items():
            session.nodes[name].changes += [
                Change(what=f"package {package}", is_="missing", should="installed") for package in missing
            ]


def compare_fingerprints(session: Session) -> None:
    """All nodes have the same packages, or those that differ are named."""
    if session.request.check or session.stopped:
        return
    tell = session.listener.note
    records = {name: recorded_facts(session.source, name, tell) for name in session.alive}
    found = {name: record.packages if record else {} for name, record in records.items()}
    if len({record and record.fingerprint for record in records.values()}) < 2:
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


def sync(request: ProvisionRequest, listener: Listener, environment: Mapping[str, str]) -> Report:
    """Update scripts, environment, secrets and data sets on provisioned nodes.

    Raises:
        OrchError: If the nodes have not been provisioned, or Ansible does not start.
    """
    session = open_session(request, listener, environment, "sync")
    variables = {"orch_root": recorded_root(session), "orch_train": str(TRAIN), "orch_data": data_trees(request.data)}
    with session.state.lock("sync"):
        session.run_locked("sync", variables)
    return session.report(session.source.stem)


def recorded_root(session: Session) -> str:
    """Return the folder of orch on the nodes, which the preflight has made equal for all."""
    records = [recorded_facts(session.source, name, session.listener.note) for name in session.nodes]
    roots = {record.root for record in records if record and record.root}
    if len(roots) != 1:
        raise RequestError(
            f"The nodes of {session.source} have not been provisioned.",
            hint=f"First: orch provision {session.request.inventory}",
        )
    return roots.pop()
