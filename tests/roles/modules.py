"""Access to the Ansible modules and runs of Ansible on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestrator.provisioning.playbook import render_variables

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"


def load_module(name: str, folder: str = "library") -> ModuleType:
    """Import a module of a folder of playbooks/."""
    spec = importlib.util.spec_from_file_location(name, PLAYBOOKS / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_play(folder: Path, play: dict[str, Any], nodes: tuple[str, ...] = ("node0",), **variables: Any) -> str:
    """Run a play for nodes that are all this machine, and return Ansible's output."""
    (folder / "variables").write_text(render_variables(variables))
    (folder / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, **play}]))
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": dict.fromkeys(nodes, host)}}))
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [program, "-i", folder / "hosts.yml", "-e", f"@{folder}/variables", folder / "play.yml"],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(PLAYBOOKS.parent / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.oneline",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
