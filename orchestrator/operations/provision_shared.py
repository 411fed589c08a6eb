"""Provision a shared folder, once for all nodes of a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import load
from orchestrator.files import TRAIN, private_folder, state_home, write_private
from orchestrator.model.packages import Requirements
from orchestrator.model.provision_report import Report
from orchestrator.operations.provision import prepare_wheels, requirements_of, stack_indexes
from orchestrator.provisioning.plan import ProvisionRequest, platform_of
from orchestrator.provisioning.preflight import shared_folder_problems
from orchestrator.provisioning.session import Listener, Session, open_session
from orchestrator.stacks.stack import Stack
from orchestrator.targets.interface import SharedFolder

THIS_MACHINE = "here"  # its name in the inventory


def provision_shared(
    shared: SharedFolder, request: ProvisionRequest, listener: Listener, environment: Mapping[str, str]
) -> Report:
    """Install the stack and train/ in the shared folder, with the roles that install them on a node.

    Raises:
        OrchError: if the request is invalid or Ansible does not start.
    """
    request = replace(request, inventory=str(write_inventory(shared)))
    stack = load.stack(request.stack)
    session = open_session(request, listener, environment, "provision")
    requirements = requirements_of(session)
    with session.state.lock("provision"):
        session.run("preflight", {"orch_stack": stack.name, "orch_root": shared.root})
        if session.probes and not session.stopped and passes(session, stack):
            fill(session, stack, shared, requirements)
    return session.report(shared.root)


def write_inventory(shared: SharedFolder) -> Path:
    """Write an inventory of the one host that fills the folder, and return its path."""
    user, _, host = shared.host.rpartition("@")
    variables = {"ansible_host": host} if host else {"ansible_connection": "local"}
    if host and user:
        variables["ansible_user"] = user
    folder = private_folder(state_home() / "shared" / (host or THIS_MACHINE))
    path = folder / "hosts.yml"
    write_private(path, json.dumps({"all": {"hosts": {host or THIS_MACHINE: variables}}}, indent=1) + "\n")
    return path


def passes(session: Session, stack: Stack) -> bool:
    for name, probe in session.probes.items():
        for problem in shared_folder_problems(probe, stack):
            session.nodes[name].fail(problem)
    return not any(node.failed for node in session.nodes.values())


def fill(session: Session, stack: Stack, shared: SharedFolder, requirements: Requirements | None) -> None:
    """Run the playbook that installs the stack in the folder."""
    platforms = {name: platform_of(probe) for name, probe in session.probes.items()}
    houses = prepare_wheels(session, stack, tuple(platforms.values()), requirements)
    variables: dict[str, Any] = {
        "orch_root": shared.root,
        "orch_stack": stack.name,
        "orch_train": str(TRAIN),
        "orch_wheelhouses": houses,
        "orch_wheels": "index" if session.request.index else "wheelhouse",
        "orch_stack_indexes": stack_indexes(stack),
        "orch_nodes": {
            name: {"python": probe.python_path, "wheelhouse": platforms[name].key}
            for name, probe in session.probes.items()
        },
    }
    session.run_locked("shared", variables)
