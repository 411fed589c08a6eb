from __future__ import annotations

import json
from pathlib import Path

from tests.roles.modules import run_play


def test_node_cannot_change_other_facts_or_run_programs_by_its_record(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    template = "{{ lookup('pipe', 'touch " + str(marker) + "') }}"
    facts = {
        "packages": {"torch": template},
        "mpi": {},
        "cpu_model": template,
        "address": "192.0.2.66",
        "connection": {"arguments": "-o ProxyCommand=id"},
        "verified": {"alone": "x"},
    }
    (tmp_path / "facts.py").write_text(f"import json; print(json.dumps({facts!r}))")
    record = {"cpu_model": template, "address": "10.0.0.1", "packages": {}}
    copy = {"content": "{{ orch_facts | to_json }}", "dest": str(tmp_path / "recorded"), "mode": "0600"}
    run_play(
        tmp_path,
        {"roles": ["record"], "post_tasks": [{"ansible.builtin.copy": copy}]},
        orch_root=str(tmp_path / "orch"),
        orch_stack="current",
        orch_train="/nowhere",
        record_facts_script=str(tmp_path / "facts.py"),
        orch_nodes={"node0": {"record": record, "missing": ["ssh"]}},
    )
    assert not marker.exists()
    recorded = json.loads((tmp_path / "recorded").read_text())
    assert recorded["cpu_model"] == recorded["packages"]["torch"] == template
    assert recorded["address"] == "10.0.0.1"
    assert recorded["connection"]["arguments"].strip() == ""
    assert "verified" not in recorded
