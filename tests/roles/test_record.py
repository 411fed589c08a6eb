from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.roles.modules import PLAYBOOKS, load_module, run_play


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


@pytest.mark.parametrize("path", ["a/b", "", "//", "/no/such/folder"])
def test_every_path_has_an_existing_parent(path: str) -> None:
    program = "import orch_probe, sys; print(orch_probe.existing_parent(sys.argv[1]))"
    command = [sys.executable, "-B", "-c", program, path]  # a process, because a wrong loop would not end
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=PLAYBOOKS / "library")
    assert os.path.isdir(done.stdout.strip()), done.stderr


def test_root_is_absolute_and_its_default_depends_on_the_user() -> None:
    home = Path("~").expanduser()
    probe = load_module("orch_probe")
    assert probe.find_root("/data/orch") == "/data/orch"
    assert probe.find_root("") == ("/opt/orch" if os.getuid() == 0 else f"{home}/orch")
    for root in ("orch", "~/orch"):
        with pytest.raises(ValueError, match="absolute path"):
            probe.find_root(root)


def test_comments_in_another_encoding_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "etc-hosts"
    path.write_bytes(b"# B\xfcro\n127.0.1.1 node0 # B\xfcro\n10.0.0.9 printer # B\xfcro\n")
    assert "127.0.1.1 node0" in load_module("orch_probe").read(str(path))
    task = {"orch_hosts": {"cluster": "lab", "path": str(path), "nodes": [{"address": "10.0.0.1", "names": ["node0"]}]}}
    assert "CHANGED" in run_play(tmp_path, {"tasks": [task]})
    block = b"# begin orch cluster lab\n10.0.0.1 node0\n# end orch cluster lab\n"
    assert path.read_bytes() == block + b"# B\xfcro\n10.0.0.9 printer # B\xfcro\n"
