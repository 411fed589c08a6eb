"""What provisioning keeps of what tasks say: who may say what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.load.facts import read_record
from orchestrator.provisioning.plan import ProvisionRequest
from orchestrator.provisioning.report import NodeReport
from orchestrator.provisioning.session import STRANGE, Listener, Session
from orchestrator.provisioning.task_result import task_result
from orchestrator.state import State
from tests.unit.provisioning.test_node_answers import ORDER, answer, facts

RECORD = facts() | {"root": "/opt/orch", "connection": {"host": "10.0.0.1"}}
EVIL = RECORD | {"connection": {"host": "h", "arguments": "-o ProxyCommand=id"}}


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Session(
        request=ProvisionRequest(inventory="lab"),
        source=tmp_path / "lab",
        state=State.of(tmp_path / "lab"),
        log=tmp_path / "log",
        listener=Listener(),
        environment={},
        nodes={"node0": NodeReport(node="node0")},
        hosts={"node0": {}},
    )


def say(session: Session, task: str, role: str, res: object, action: str = "orch_probe") -> None:
    data = {
        "host": "node0",
        "task": task,
        "role": role,
        "res": res,
        "resolved_action": action,
        "start": "2026-01-01T12:00:00",
        "end": "2026-01-01T12:00:01",
    }
    session.take(task_result("ok", data))


def recorded(session: Session) -> Any:
    return read_record(session.state.record("node0"))


def test_what_comes_before_a_roles_tasks_is_not_counted(session: Session) -> None:
    say(session, "Validating arguments against arg spec main", "lock", {}, "validate_argument_spec")
    say(session, "The firewall", "", {}, "ansible.builtin.include_role")
    assert session.nodes["node0"].ok == 0
    say(session, "Make the lock present", "lock", {}, "orch_lock")
    assert session.nodes["node0"].ok == 1


def test_a_record_is_what_the_recording_role_says(session: Session) -> None:
    say(session, "Record the facts", "record", {"ansible_facts": {"orch_facts": RECORD}}, "set_fact")
    assert recorded(session).connection.host == "10.0.0.1"


@pytest.mark.parametrize(
    ("task", "role", "action"),
    [
        ("Look at the node", "preflight", "orch_probe"),
        ("Look at the node again", "record", "orch_probe"),
        ("Make the lock present", "lock", "orch_lock"),
        ("Record the facts", "sync", "set_fact"),
    ],
)
def test_no_modules_result_is_a_record(session: Session, task: str, role: str, action: str) -> None:
    """A module runs on the node: its result could name how the controller reaches it from now on,
    by a program of the controller."""
    res = {"probe": answer(), "ansible_facts": {"orch_facts": EVIL}}
    say(session, task, role, res, action)
    assert recorded(session) is None


@pytest.mark.parametrize("told", [None, [], {}, "x", {"probe": 7}, {"probe": answer(user=ORDER)}])
def test_a_strange_answer_fails_its_node_and_is_told_in_words(session: Session, told: Any) -> None:
    say(session, "Look at the node", "preflight", told)
    node = session.nodes["node0"]
    assert (node.failed, node.hint, session.probes) == (1, STRANGE, {})
    assert "node0 does not say what a node says" in node.problem
    assert node.problem.isprintable()


@pytest.mark.parametrize("facts", [None, [], {}, {"orch_facts": 1}, {"orch_facts": {"root": 1}}])
def test_so_do_strange_facts(session: Session, facts: Any) -> None:
    say(session, "Record the facts", "record", {"ansible_facts": facts}, "set_fact")
    assert session.nodes["node0"].failed == 1
    assert recorded(session) is None
