from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.roles.modules import PLAYBOOKS

ROLES = sorted(path for path in (PLAYBOOKS / "roles").iterdir() if path.is_dir())


@pytest.mark.parametrize("role", ROLES, ids=lambda role: str(role.name))
def test_role_declares_all_options(role: Path) -> None:
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())
    options = specs["argument_specs"]["main"]["options"]
    assert all(option["type"] and option["description"] for option in options.values())
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    assert set(defaults) <= set(options)
    # orch sets all options without a default.
    required = {name for name, option in options.items() if option.get("required")}
    assert all(name.startswith("orch_") for name in required)
    assert (role / "README.md").read_text().startswith(f"# {role.name}\n")
    assert (role / "tasks/main.yml").is_file()


def test_ansible_accepts_the_syntax_of_all_playbooks() -> None:
    program = Path(sys.executable).with_name("ansible-playbook")
    playbooks = sorted(PLAYBOOKS.glob("*.yml"))
    assert playbooks
    done = subprocess.run(
        [program, "--syntax-check", "-i", "localhost,", *playbooks],
        env={**os.environ, "ANSIBLE_CONFIG": str(PLAYBOOKS.parent / "ansible.cfg")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
