"""The node's half of orch_tree, on real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.roles.modules import PLAYBOOKS, load_module

tree = load_module("orch_tree")


def given(root: Path, **changes: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {"manifest": {}, "mirrored": [], "ignored": [], "folders": {}}
    return {"root": str(root), "archive": None, "content": None, "absent": [], **nothing, **changes}


def test_a_file_that_must_not_be_there_goes(tmp_path: Path) -> None:
    for name in ("secrets.json", "own.json"):
        (tmp_path / name).write_text("{}")
    task = given(tmp_path, absent=["secrets.json", "never.json"])
    found = tree.compare(task)
    assert found["drift"] == [{"what": "secrets.json", "is": "present", "should": "absent"}]
    tree.apply(task, found)
    assert [path.name for path in tmp_path.iterdir()] == ["own.json"]
    assert tree.compare(task)["drift"] == []


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def wide() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("more", [b"", os.urandom(2 << 20)], ids=["small", "large"])
def test_what_is_synced_is_its_users_alone(tmp_path: Path, wide: None, more: bytes) -> None:
    """By Ansible itself, on this machine: a private file stays one, also under a wide umask. What
    is small comes with the module's arguments, the rest as a file."""
    data = tmp_path / "data" / "inner"
    data.mkdir(parents=True)
    for name, bits in (("secret", 0o600), ("public", 0o644), ("program", 0o755)):
        (data / name).write_text(name)
        (data / name).chmod(bits)
    (data.parent / "more").write_bytes(more)
    root = tmp_path / "root"
    task = {
        "root": str(root),
        "folders": {"": "0755", "data": "0700"},
        "trees": [{"src": str(tmp_path / "data"), "dest": "data"}],
        "files": [{"dest": "env.json", "content": "{}", "mode": "0600"}],
    }
    play = [{"hosts": "all", "gather_facts": False, "tasks": [{"orch_tree": task}]}]
    (tmp_path / "play.yml").write_text(json.dumps(play))
    hosts = {"here": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    for changed in (1, 0):
        done = subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), "-i", tmp_path / "hosts.yml", tmp_path / "play.yml"],
            env=os.environ | {"ANSIBLE_CONFIG": str(PLAYBOOKS.parent / "ansible.cfg")},
            capture_output=True,
            text=True,
        )
        assert f"changed={changed}" in done.stdout, done.stdout + done.stderr
    assert (root / "data/more").read_bytes() == more
    assert mode(root) == 0o755
    assert mode(root / "env.json") == 0o600
    assert {mode(path) for path in root.rglob("*") if path.is_dir()} == {0o700}
    modes = {path.name: mode(path) for path in (root / "data/inner").iterdir()}
    assert modes == {"secret": 0o600, "public": 0o600, "program": 0o700}
