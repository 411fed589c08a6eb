"""Provision the nodes of an inventory or a shared folder, and update what training reads on nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orch_node.standalone.facts import describe_differences

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.files import LIB, SHARE, STANDALONE, TRAIN, private_folder, sha256, state_home, write_private
from orchestrator.load.inventory import HAS_PASSWORD, is_template
from orchestrator.load.records import recorded_facts
from orchestrator.model.decision import Finding
from orchestrator.model.hosts import SSH_PORT, fold
from orchestrator.model.packages import Requirements
from orchestrator.model.provision_report import Report as Report
from orchestrator.provisioning import wheelhouse
from orchestrator.provisioning.plan import ProvisionPlan, plan_provision
from orchestrator.provisioning.plan import ProvisionRequest as ProvisionRequest
from orchestrator.provisioning.playbook import TaskResult as TaskResult
from orchestrator.provisioning.preflight import Host, describe_problem, shared_folder_problems
from orchestrator.provisioning.probe import fabric_checks_version
from orchestrator.provisioning.session import Listener as Listener
from orchestrator.provisioning.session import Session
from orchestrator.provisioning.sources import Source, find_sources, source_trees
from orchestrator.stacks.stack import Stack
from orchestrator.targets.interface import SharedFolder

LOCAL_HOST_NAME = "here"  # its name in the inventory


def provision(request: ProvisionRequest, listener: Listener, environment: Mapping[str, str]) -> Report:
    """Install a stack on all nodes of an inventory and verify it.

    Args:
        request: what to install.
        listener: receives the progress.
        environment: variables for Ansible, such as the file with the sudo password.

    Raises:
        OrchError: if the request is invalid or Ansible does not start.
    """
    session = Session(request, listener, environment, "provision")
    stack = load.stack(request.stack).with_mpi(load.mpi_implementations(session.hosts))
    if request.no_stack:
        stack = stack.for_processes()
    image = image_of(session)
    requirements = None if request.no_stack else requirements_of(session)
    hosts = {name: host_of(session, name) for name in session.nodes}
    sources = find_sources(request.models, request.data, listener.note)  # before connecting to nodes
    with session.state.lock("provision"), source_trees(sources) as trees:
        session.run("preflight", {"orch_stack": stack.name, "preflight_facts_script": str(STANDALONE / "facts.py")})
        if session.probes and not session.stopped:
            install(session, stack, hosts, requirements, {"orch_image": image, "orch_data": trees})
    return report_sources(session, sources)


def report_sources(session: Session, sources: Sequence[Source]) -> Report:
    """Return the report with the models and data sets that are on all nodes, and their paths there."""
    report = session.report(session.source.stem)
    if report.state != "done" or not sources:
        return report
    root = recorded_root(session)
    return replace(
        report, synced=tuple(replace(source.synced, path=f"{root}/{source.synced.path}") for source in sources)
    )


def image_of(session: Session) -> dict[str, Any]:
    """Return the variables of the docker role for the image of the runs.

    Raises:
        RequestError: if the image file is invalid.
    """
    settings = load.common_docker_variable(session.hosts)
    name = settings.image
    path = session.request.docker_load or settings.load
    if not path:
        return {"image": name, "file": {}}
    # The file of --docker-load may contain another image than the one that the inventory names.
    name, image_id = load.image_file(Path(path), "" if session.request.docker_load else name)
    file = Path(path).resolve()
    record = {"folder": str(file.parent), "name": file.name, "sha256": sha256(file), "id": image_id}
    return {"image": name, "file": record}


def install(
    session: Session, stack: Stack, hosts: dict[str, Host], requirements: Requirements | None, files: Mapping[str, Any]
) -> None:
    """Install the stack after the preflight, unless a reachable node has failed it.

    Args:
        session: the session, with the results of the preflight.
        stack: the stack.
        hosts: all nodes of the inventory, by their names.
        requirements: the user's packages.
        files: the variables of the roles that copy the image, models and data.
    """
    probes = tuple(session.probes[name] for name in session.nodes if name in session.probes)
    plan = plan_provision(stack, hosts, probes)
    for decision in plan.decisions:
        session.listener.note(decision.describe())
    if plan.problems:
        refuse(session, plan)
        return
    session.state.write_trust(plan.trust)
    variables = {
        **plan.variables,
        **stack_variables(session, stack, requirements),
        **files,
        "orch_cluster": session.state.cluster,
        "orch_verify": session.request.verify,
        "orch_no_stack": session.request.no_stack,
        "orch_trust": str(session.state.trust),
        "orch_verify_version": sha256(LIB / "orch_node" / "verify.py")[:12],
        "orch_fabric_version": fabric_checks_version(SHARE),
    }
    session.run_locked("provision", variables)
    compare_fingerprints(session)


def refuse(session: Session, plan: ProvisionPlan) -> None:
    """Record the problems of nodes that failed the preflight, and why the others were not changed."""
    for problem in plan.problems:
        session.nodes[problem.subject].fail(problem)
    failed_nodes = fold(dict.fromkeys(problem.subject for problem in plan.problems))
    for name in session.alive:
        message = f"not changed: {failed_nodes} failed the preflight"
        session.nodes[name].findings.append(Finding(subject=name, severity="absent", message=message))


def host_of(session: Session, name: str) -> Host:
    record = recorded_facts(session.source, name, session.listener.note)
    verified = record.verified if record else None
    variables = session.hosts[name]
    return Host(
        port=port_of(name, variables),
        verified=verified.model_dump() if verified else {},
        proved={name: vars(proof) for name, proof in record.proved.items()} if record else {},
        may_become=HAS_PASSWORD in variables or session.request.may_become,
        limits=load.limits(name, variables),
    )


def port_of(name: str, variables: Mapping[str, Any]) -> int:
    """Return the port at which other nodes reach a host.

    Raises:
        RequestError: if only Ansible knows it.
    """
    port = variables.get("orch_port") or variables.get("ansible_port") or SSH_PORT
    if is_template(port):
        raise RequestError.about("template-as-port", port=port, name=name)
    return int(port)


def requirements_of(session: Session) -> Requirements | None:
    """Return the packages of --requirements and orch_requirements.

    Raises:
        RequestError: if a file cannot be used.
    """
    common_file = load.common_requirements(session.source, session.hosts)
    return load.shared_requirements(session.request.requirements, common_file)


def stack_variables(session: Session, stack: Stack, requirements: Requirements | None) -> dict[str, Any]:
    """Prepare a wheelhouse for each platform, and return the variables of the roles that install train/ and a stack.

    Raises:
        RequestError: if the user's packages do not fit the stack.
        ExecuteError: if a wheel cannot be downloaded.
    """
    links, note = session.request.find_links, session.listener.note
    wheelhouses = {
        platform.key: wheelhouse.prepare_wheelhouse(stack, platform, links, note, requirements).variables()
        for platform in dict.fromkeys(probe.platform for probe in session.probes.values())
    }
    return {
        "orch_train": str(TRAIN),
        "orch_wheelhouses": wheelhouses,
        "orch_wheels": "index" if session.request.index else "wheelhouse",
        "orch_stack_indexes": [word for index in stack.indexes for word in (f"--{index.option}", index.url)],
    }


def compare_fingerprints(session: Session) -> None:
    """Fail nodes whose packages differ from those of the first node."""
    if session.request.dry_run or session.stopped:
        return
    records = {name: recorded_facts(session.source, name, session.listener.note) for name in session.alive}
    packages = {name: record.packages if record else {} for name, record in records.items()}
    reference = next(iter(packages), "")
    for name, installed in packages.items():
        if differences := describe_differences({reference: packages[reference], name: installed}):
            session.fail(name, f"its packages are not those of {reference}: {differences}")


def sync(request: ProvisionRequest, listener: Listener, environment: Mapping[str, str]) -> Report:
    """Update scripts, environment, secrets, models and data sets on provisioned nodes.

    Raises:
        OrchError: if the nodes have not been provisioned, a source cannot be read, or Ansible does not start.
    """
    session = Session(request, listener, environment, "sync")
    root = recorded_root(session)
    sources = find_sources(request.models, request.data, listener.note)
    with session.state.lock("sync"), source_trees(sources) as trees:
        session.run_locked("sync", {"orch_root": root, "orch_train": str(TRAIN), "orch_data": trees})
    return report_sources(session, sources)


def recorded_root(session: Session) -> str:
    """Return the folder of orch on the nodes, which the preflight has made equal for all."""
    records = [recorded_facts(session.source, name, session.listener.note) for name in session.nodes]
    roots = {record.root for record in records if record and record.root}
    if len(roots) != 1:
        raise RequestError.about("not-provisioned", inventory=session.source, name=session.request.inventory)
    return roots.pop()


def provision_shared(
    shared: SharedFolder, request: ProvisionRequest, listener: Listener, environment: Mapping[str, str]
) -> Report:
    """Install the stack and train/ in the shared folder, with the roles that install them on a node.

    Raises:
        OrchError: if the request is invalid or Ansible does not start.
    """
    request = replace(request, inventory=str(write_inventory(shared)))
    stack = load.stack(request.stack)
    session = Session(request, listener, environment, "provision")
    requirements = requirements_of(session)
    variables: dict[str, Any] = {"orch_stack": stack.name, "orch_root": shared.root}
    with session.state.lock("provision"):
        session.run("preflight", variables)
        for name, probe in session.probes.items():
            for problem in shared_folder_problems(probe, stack):
                session.nodes[name].fail(describe_problem(probe, problem))
        if session.probes and not session.stopped and not any(node.failed for node in session.nodes.values()):
            nodes = {
                name: {"python": probe.python_path, "wheelhouse": probe.platform.key}
                for name, probe in session.probes.items()
            }
            variables |= {**stack_variables(session, stack, requirements), "orch_nodes": nodes}
            session.run_locked("shared", variables)
    return session.report(shared.root)


def write_inventory(shared: SharedFolder) -> Path:
    """Write an inventory of the one host that fills the folder, and return its path."""
    user, _, host = shared.host.rpartition("@")
    variables = {"ansible_host": host} if host else {"ansible_connection": "local"}
    if host and user:
        variables["ansible_user"] = user
    path = private_folder(state_home() / "shared" / (host or LOCAL_HOST_NAME)) / "hosts.yml"
    write_private(path, json.dumps({"all": {"hosts": {host or LOCAL_HOST_NAME: variables}}}, indent=1) + "\n")
    return path
