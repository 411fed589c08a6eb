from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator import load
from orchestrator.errors import RequestError, problems
from orchestrator.load.records import read_record
from orchestrator.provisioning.plan import ProvisionRequest
from orchestrator.provisioning.session import Listener, Session
from tests.support.files import write_files
from tests.support.hostile import ESCAPE_SEQUENCE
from tests.support.node_responses import add_result, make_probe_result, make_reported_facts, session

__all__ = ["session"]  # a fixture
RECORD = make_reported_facts() | {"root": "/opt/orch", "connection": {"host": "10.0.0.1"}}
EVIL = RECORD | {"connection": {"host": "h", "arguments": "-o ProxyCommand=id"}}


def recorded(session: Session) -> Any:
    return read_record(session.state.record("node0"))


def test_record_comes_from_the_recording_role(session: Session) -> None:
    add_result(session, "Record the facts", "record", {"ansible_facts": {"orch_facts": RECORD}}, "set_fact")
    assert recorded(session).connection.host == "10.0.0.1"


def test_results_of_modules_are_not_recorded(session: Session) -> None:
    for task, role, action in (
        ("Probe the node", "preflight", "orch_probe"),
        ("Probe the node again", "record", "orch_probe"),
        ("Make the lock present", "lock", "orch_lock"),
        ("Record the facts", "sync", "set_fact"),
    ):
        # A node could otherwise name a program of the controller by which it is reached.
        res = {"probe": make_probe_result(), "ansible_facts": {"orch_facts": EVIL}}
        add_result(session, task, role, res, action)
        assert recorded(session) is None


@pytest.mark.parametrize(
    "result", [None, [], {}, "x", {"probe": 7}, {"probe": make_probe_result(user=ESCAPE_SEQUENCE)}]
)
def test_invalid_probe_fails_its_node_with_a_printable_message(session: Session, result: Any) -> None:
    add_result(session, "Probe the node", "preflight", result)
    node = session.nodes["node0"]
    assert (node.failed, node.hint, session.probes) == (1, problems()["invalid-result"]["hint"], {})
    assert "node0 returned an invalid probe" in node.problem
    assert node.problem.isprintable()


UNUSABLE = RECORD | {"connection": {"host": "h", "arguments": "-L 1:x:1"}}


@pytest.mark.parametrize(
    "facts", [None, [], {}, {"orch_facts": 1}, {"orch_facts": {"root": 1}}, {"orch_facts": UNUSABLE}]
)
def test_invalid_facts_fail_their_node(session: Session, facts: Any) -> None:
    add_result(session, "Record the facts", "record", {"ansible_facts": facts}, "set_fact")
    assert session.nodes["node0"].failed == 1
    assert recorded(session) is None


def test_path_that_is_not_utf8_is_read_but_not_provisioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    folder = write_files(tmp_path / os.fsdecode(b"\xff"), {"hosts.yml": "all: {hosts: {n1: }}\n"})
    monkeypatch.chdir(folder)
    assert not load.cluster("./hosts.yml").nodes, "no node is recorded"
    session = Session(ProvisionRequest(inventory="./hosts.yml"), Listener(), {}, "provision")
    with pytest.raises(RequestError, match=r"hosts\.yml.* is not UTF-8"):
        session.run("preflight", {})
