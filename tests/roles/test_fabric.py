"""The role that tries fabrics, by Ansible itself on this machine, and what orch keeps of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.load.facts import read_record
from orchestrator.paths import TRAIN
from orchestrator.provisioning import proofs
from orchestrator.provisioning.extra_variables import render
from orchestrator.provisioning.session import STRANGE, Session
from tests.roles.modules import PLAYBOOKS
from tests.unit.provisioning.test_node_answers import facts
from tests.unit.provisioning.test_session import say, session

__all__ = ["session"]
CARD = {
    "name": "mlx5_0",
    "driver": "mlx5_core",
    "link": "InfiniBand",
    "interface": "ib0",
    "speed": 100_000,
    "numa": 0,
    "active": True,
}
KEY = "cd" * 32


def played(folder: Path, devices: list[dict[str, Any]], verified: str = "") -> str:
    """What the task prints; empty where it was skipped. Two nodes, both this machine."""
    its = {
        "fabrics": {"verbs": ""},
        "devices": devices,
        "address": "127.0.0.1",
        "interface": "lo",
        "fingerprint": "ab" * 32,
    }
    (folder / "orch").mkdir(exist_ok=True)
    if not (folder / "orch" / "train").exists():
        (folder / "orch" / "train").symlink_to(TRAIN)
    names = ("node0", "node1")
    variables = {
        "orch_root": str(folder / "orch"),
        "orch_stack": "current",
        "orch_backend": "ccl",
        "orch_verify": False,
        "orch_fabric_version": "1",
        "fabric_prefix": sys.prefix,
        "fabric_seconds": 60,
        "orch_facts": its,
        "orch_nodes": {name: {"verified": {"fabrics": verified}} for name in names},
    }
    (folder / "variables").write_text(render(variables))
    play = [{"hosts": "all", "gather_facts": False, "roles": ["fabric"]}]
    (folder / "play.yml").write_text(json.dumps(play))
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": dict.fromkeys(names, host)}}))
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "-i",
            folder / "hosts.yml",
            "-e",
            f"@{folder}/variables",
            folder / "play.yml",
        ],
        env=os.environ
        | {
            "ANSIBLE_CONFIG": str(PLAYBOOKS.parent / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.oneline",
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_tried_where_two_nodes_have_devices(tmp_path: Path) -> None:
    """The card is only said to be there: MPI finds none, and that is the answer."""
    said = played(tmp_path, [CARD])
    (line,) = [line for line in said.splitlines() if "(stdout)" in line]
    answer = proofs.parse("node0", {"stdout": line.partition("(stdout) ")[2]})
    assert set(answer.nodes) == {"node0", "node1"}
    assert "fi_getinfo() failed" in answer.nodes["node1"]["verbs"].failed
    assert "SKIPPED" in played(tmp_path, [CARD], verified=answer.key)


def test_it_is_not_tried_without_devices(tmp_path: Path) -> None:
    assert "SKIPPED" in played(tmp_path, [])


def said_of(**nodes: Any) -> dict[str, Any]:
    return {"rc": 0, "stdout": json.dumps({"key": KEY, "nodes": nodes})}


def record(session: Session) -> None:
    known = facts() | {"root": "/opt/orch"}
    say(session, "Record the facts", "record", {"ansible_facts": {"orch_facts": known}}, "set_fact")


def test_what_was_proved_is_kept_in_the_records(session: Session) -> None:
    record(session)
    proof = {"together": KEY, "rails": 2, "gbit": 92.5, "microseconds": 3.1, "failed": ""}
    stranger = {"node0": {"psm3": proof}, "../node7": {"psm3": proof}}
    say(session, "Try the fabrics", "fabric", said_of(node0={"psm3": proof}), "command")
    kept = read_record(session.state.record("node0"))
    assert kept is not None
    assert (kept.proved["psm3"].gbit, kept.proved["psm3"].rails) == (92.5, 2)
    assert kept.verified is not None
    assert kept.verified.fabrics == KEY
    say(session, "Try the fabrics", "fabric", said_of(**stranger), "command")
    assert session.nodes["node0"].hint == STRANGE


def test_a_damaged_record_is_named_and_left(session: Session) -> None:
    record(session)
    session.state.record("node0").write_text("{")
    notes: list[str] = []
    session.listener.note = notes.append
    say(session, "Try the fabrics", "fabric", said_of(node0={}), "command")
    assert session.state.record("node0").read_text() == "{"
    assert "node0.json" in notes[0]


@pytest.mark.parametrize(
    "words",
    [
        "",
        "no JSON",
        "[]",
        '{"key": "x", "nodes": {}}',
        json.dumps({"key": KEY, "nodes": {"node0": {"psm3": {"together": "{{ 1 }}"}}}}),
    ],
)
def test_what_is_no_answer_is_not_kept(words: str, session: Session) -> None:
    record(session)
    before = session.state.record("node0").read_text()
    say(session, "Try the fabrics", "fabric", {"rc": 0, "stdout": words}, "command")
    assert session.state.record("node0").read_text() == before
    assert session.nodes["node0"].failed == 1


def test_a_trial_that_ends_badly_is_no_failure_of_the_node(session: Session) -> None:
    record(session)
    notes: list[str] = []
    session.listener.note = notes.append
    failed = {"rc": 1, "stderr": "Traceback"}
    say(session, "Try the fabrics", "fabric", failed, "command")
    assert session.nodes["node0"].failed == 0
    assert notes == ["which fabrics carry traffic could not be tried: Traceback"]
