"""Run Ansible on this machine with texts that it must not evaluate or print as they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.provisioning.messages import changes_of, explain, message_of
from orchestrator.provisioning.playbook import RESULTS, Playbooks, TaskResult, handle_event, run, task_result
from tests.support.hostile import ESCAPE_SEQUENCE, JSON


def test_ansible_evaluates_no_template_and_reads_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", "vault_password")
    (tmp_path / "vault_password").write_text("x")
    marker = tmp_path / "ran"
    (tmp_path / "hosts.yml").write_text(
        f"all: {{hosts: {{node0: {{ansible_connection: local, ansible_python_interpreter: {sys.executable}}}}}}}"
    )
    template = "{{ lookup('pipe', 'touch " + str(marker) + "') }}"
    root = tmp_path / template
    results: list[TaskResult] = []
    playbooks = Playbooks(inventory=tmp_path / "hosts.yml", state=tmp_path / "state", log=tmp_path / "log")
    variables = {"orch_root": str(root), "orch_owner": {"token": template}}
    assert run(playbooks, "unlock", variables, results.append, lambda line: None) == "successful"
    assert [result.node for result in results if result.state == "ok"]
    assert not marker.exists()


def test_events_are_logged_without_escape_sequences(tmp_path: Path) -> None:
    lines: list[str] = []
    with (tmp_path / "log").open("w") as log:
        handle_event({"stdout": f"ok: [node0] => {ESCAPE_SEQUENCE}", "event_data": {}}, log, print, lines.append)
    assert ESCAPE_SEQUENCE not in lines[0]
    assert "\x1b" not in (tmp_path / "log").read_text()


@example(res=None, duration=10**400, task="", state="ok")
@given(res=JSON, duration=JSON, task=JSON, state=st.sampled_from(sorted(RESULTS.values())))
def test_any_result_of_a_task_is_reported_as_printable(res: object, duration: object, task: object, state: str) -> None:
    data = {"host": "node0", "res": res, "duration": duration, "task": task}
    result = task_result(state, data)
    assert isinstance(result, TaskResult)
    texts = [*explain(message_of(result.result)), result.task]
    for change in changes_of(result.result, result.task):
        texts += [change.what, change.is_, change.should]
    assert all(text.isprintable() for text in texts)
