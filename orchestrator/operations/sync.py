"""`orch sync`: scripts, environment, secrets and data, to nodes that were provisioned before."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import RequestError
from orchestrator.load.facts import recorded_facts
from orchestrator.operations.provision import data_trees
from orchestrator.paths import TRAIN
from orchestrator.provisioning.plan import ProvisionRequest
from orchestrator.provisioning.report import Report
from orchestrator.provisioning.session import Listener, Session, open_session


def sync(request: ProvisionRequest, listener: Listener, environment: Mapping[str, str]) -> Report:
    """Bring what training reads to all nodes. Raises OrchError."""
    session = open_session(request, listener, environment, "sync")
    variables = {"orch_root": recorded_root(session), "orch_train": str(TRAIN), "orch_data": data_trees(request.data)}
    with session.state.lock("sync"):
        session.run_locked("sync", variables)
    return session.report(session.source.stem)


def recorded_root(session: Session) -> str:
    """The folder on the nodes; equal for all, as the preflight of `orch provision` has seen to."""
    tell = session.listener.note
    records = [recorded_facts(session.source, name, tell) for name in session.nodes]
    roots = {record.root for record in records if record and record.root}
    if len(roots) != 1:
        raise RequestError(
            f"The nodes of {session.source} have not been provisioned.",
            hint=f"First: orch provision {session.request.inventory}",
        )
    return roots.pop()
