"""The role that records facts, by Ansible itself on this machine: a node's words stay words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from orchestrator.provisioning.playbook import render_variables
from tests.roles.modules import PLAYBOOKS

FACTS = "import json; print(json.dumps({facts!r}))"


def test_a_node_adds_nothing_to_its_record_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    template = "{{ lookup('pipe', 'touch " + str(mark) + "') }}"
    said = {
        "packages": {"torch": template},
        "mpi": {},
        "cpu_model": template,
        "address": "192.0.2.66",
        "connection": {"arguments": "-o ProxyCommand=id"},
        "verified": {"alone": "x"},
    }
    (tmp_path / "facts.py").write_text(FACTS.format(facts=said))
    record = {"cpu_model": template, "address": "10.0.0.1", "packages": {}}
    variables = {
        "orch_root": str(tmp_path / "orch"),
        "orch_stack": "current",
        "orch_train": "/nowhere",
        "record_facts_script": str(tmp_path / "facts.py"),
        "orch_nodes": {"node0": {"record": record, "missing": ["ssh"]}},
    }
    (tmp_path / "variables").write_text(render_variables(variables))
    tasks = [
        {
            "ansible.builtin.copy": {
                "content": "{{ orch_facts | to_json }}",
                "dest": str(tmp_path / "recorded"),
                "mode": "0600",
            }
        }
    ]
    play = [{"hosts": "all", "gather_facts": False, "roles": ["record"], "post_tasks": tasks}]
    (tmp_path / "play.yml").write_text(json.dumps(play))
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"node0": host}}}))
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "-i",
            tmp_path / "hosts.yml",
            "-e",
            f"@{tmp_path}/variables",
            tmp_path / "play.yml",
        ],
        env=os.environ | {"ANSIBLE_CONFIG": str(PLAYBOOKS.parent / "ansible.cfg")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not mark.exists()
    recorded = json.loads((tmp_path / "recorded").read_text())
    assert recorded["cpu_model"] == recorded["packages"]["torch"] == template
    assert recorded["address"] == "10.0.0.1"
    assert recorded["connection"]["arguments"].strip() == ""
    assert "verified" not in recorded
