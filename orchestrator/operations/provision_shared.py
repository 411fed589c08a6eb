"""`orch provision --on ...`: a folder that all nodes of a cluster see is filled once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import load
from orchestrator.operations.provision import prepare_wheels, stack_indexes
from orchestrator.paths import TRAIN
from orchestrator.provisioning.plan import ProvisionRequest, platform_of
from orchestrator.provisioning.preflight import shared_folder_problems
from orchestrator.provisioning.report import Report
from orchestrator.provisioning.session import Listener, Session, open_session
from orchestrator.stacks.stack import Stack
from orchestrator.state import private_folder, state_home, write_private
from orchestrator.targets.interface import SharedFolder

HERE = "here"  # this machine, as a host


def provision_shared(
    shared: SharedFolder, request: ProvisionRequest, listener: Listener, environment: Mapping[str, str]
) -> Report:
    """The stack and train/ in the folder, by the same means as on a node. Raises OrchError."""
    request = replace(request, inventory=str(write_inventory(shared)))
    stack = load.stack(request.stack)
    session = open_session(request, listener, environment, "provision")
    with session.state.lock("provision"):
        session.run("preflight", {"orch_stack": stack.name, "orch_root": shared.root})
        if session.probes and not session.stopped and passes(session, stack):
            fill(session, stack, shared)
    return session.report(shared.root)


def write_inventory(shared: SharedFolder) -> Path:
    """One host, as Ansible reaches it."""
    user, _, host = shared.host.rpartition("@")
    reached = {"ansible_host": host, **({"ansible_user": user} if user else {})}
    how = reached if host else {"ansible_connection": "local"}
    folder = private_folder(state_home() / "shared" / (host or HERE))
    path = folder / "hosts.yml"
    write_private(path, json.dumps({"all": {"hosts": {host or HERE: how}}}, indent=1) + "\n")
    return path


def passes(session: Session, stack: Stack) -> bool:
    for name, probe in session.probes.items():
        for problem in shared_folder_problems(probe, stack):
            node = session.nodes[name]
            node.failed += 1
            node.problem, node.hint = problem.text, problem.hint
    return not any(node.failed for node in session.nodes.values())


def fill(session: Session, stack: Stack, shared: SharedFolder) -> None:
    """Raises OrchError."""
    platforms = {name: platform_of(probe) for name, probe in session.probes.items()}
    houses = prepare_wheels(session, stack, tuple(platforms.values()))
    variables: dict[str, Any] = {
        "orch_root": shared.root,
        "orch_archive": shared.archive,
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
