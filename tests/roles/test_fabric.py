"""The role `fabric`, run by Ansible on this machine, and the records of its results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from orchestrator.errors import problems
from orchestrator.files import TRAIN
from orchestrator.load.records import read_record
from orchestrator.provisioning.probe import parse_fabrics
from orchestrator.provisioning.session import Session
from tests.roles.modules import run_play
from tests.support.node_responses import add_result, make_reported_facts, session
from tests.support.nodes_with_fabrics import INFINIBAND_CARD

__all__ = ["session"]
KEY = "cd" * 32


def run_role(folder: Path, devices: list[dict[str, Any]], verified: str = "") -> str:
    """Run the role for two nodes, both of them this machine, and return Ansible's output."""
    facts = {
        "fabrics": {"verbs": ""},
        "devices": devices,
        "address": "127.0.0.1",
        "interface": "lo",
        "fingerprint": "ab" * 32,
    }
    (folder / "orch").mkdir(exist_ok=True)
    if not (folder / "orch" / "train").exists():
        (folder / "orch" / "train").symlink_to(TRAIN)
    nodes = ("node0", "node1")
    return run_play(
        folder,
        {"roles": ["fabric"]},
        nodes,
        orch_root=str(folder / "orch"),
        orch_stack="current",
        orch_backend="ccl",
        orch_verify=False,
        orch_fabric_version="1",
        fabric_prefix=sys.prefix,
        fabric_seconds=60,
        orch_facts=facts,
        orch_nodes={name: {"verified": {"fabrics": verified}} for name in nodes},
    )


def test_fabrics_are_checked_once_if_two_nodes_have_devices(tmp_path: Path) -> None:
    # The card does not exist, so MPI reports that it does not find it.
    output = run_role(tmp_path, [INFINIBAND_CARD])
    (line,) = [line for line in output.splitlines() if "(stdout)" in line]
    result = parse_fabrics("node0", {"stdout": line.partition("(stdout) ")[2]})
    assert set(result.nodes) == {"node0", "node1"}
    assert "fi_getinfo() failed" in result.nodes["node1"]["verbs"].failed
    assert "SKIPPED" in run_role(tmp_path, [INFINIBAND_CARD], verified=result.key)
    assert "SKIPPED" in run_role(tmp_path, [])


def make_output(**nodes: Any) -> dict[str, Any]:
    return {"rc": 0, "stdout": json.dumps({"key": KEY, "nodes": nodes})}


def record_facts(session: Session) -> None:
    facts = make_reported_facts() | {"root": "/opt/orch"}
    add_result(session, "Record the facts", "record", {"ansible_facts": {"orch_facts": facts}}, "set_fact")


def test_results_are_added_to_the_records(session: Session) -> None:
    record_facts(session)
    proof = {"together": KEY, "rails": 2, "gbit": 92.5, "microseconds": 3.1, "failed": ""}
    add_result(session, "Check the fabrics", "fabric", make_output(node0={"psm3": proof}), "command")
    record = read_record(session.state.record("node0"))
    assert (record.proved["psm3"].gbit, record.proved["psm3"].rails) == (92.5, 2)
    assert record.verified.fabrics == KEY
    unknown_node = {"node0": {"psm3": proof}, "../node7": {"psm3": proof}}
    add_result(session, "Check the fabrics", "fabric", make_output(**unknown_node), "command")
    assert session.nodes["node0"].hint == problems()["invalid-result"]["hint"]


def test_invalid_output_is_not_recorded(session: Session) -> None:
    record_facts(session)
    before = session.state.record("node0").read_text()
    invalid_digest = json.dumps({"key": KEY, "nodes": {"node0": {"psm3": {"together": "{{ 1 }}"}}}})
    for failures, output in enumerate(("no JSON", '{"key": "x", "nodes": {}}', invalid_digest), 1):
        add_result(session, "Check the fabrics", "fabric", {"rc": 0, "stdout": output}, "command")
        assert session.state.record("node0").read_text() == before, output
        assert session.nodes["node0"].failed == failures, output
