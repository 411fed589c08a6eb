"""`orch init`: what it writes, Ansible reads."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from orchestrator.errors import RequestError
from orchestrator.load.inventory import read_inventory
from orchestrator.operations.init import init, listed_hosts, render
from orchestrator.paths import INVENTORY

Orch = Callable[..., subprocess.CompletedProcess[str]]


def test_names_ranges_and_addresses(orch: Orch, tmp_path: Path) -> None:
    done = orch("init", "prod", "alice@node[08-09]:2222", "10.0.0.7", "bob@gpu-box", warm=False)
    assert done.returncode == 0, done.stderr
    assert "orch provision inventory/prod" in done.stdout
    hosts = read_inventory(tmp_path / "inventory/prod")
    assert {name: dict(variables) for name, variables in hosts.items()} == {
        "node08": {"ansible_user": "alice", "ansible_port": 2222},
        "node09": {"ansible_user": "alice", "ansible_port": 2222},
        "node0": {"ansible_host": "10.0.0.7"},
        "gpu-box": {"ansible_user": "bob"},
    }
    again = orch("init", "prod", "node1")
    assert (again.returncode, "already exists" in again.stderr) == (2, True)


def test_an_ssh_configuration_is_asked_of_ssh(orch: Orch, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    config = tmp_path / "config"
    config.write_text(
        "Host n1 n2 other\n  HostName %h.example.com\nHost n1\n  Port 2200\n"
        f"Host n*\n  User carol\n  IdentityFile {key}\n  ProxyJump gate\nHost *\n  User dave\n"
    )
    wanted = ("--from-ssh-config", "--ssh-config", str(config))
    done = orch("init", "lab", "n[1-2]", *wanted)
    assert done.returncode == 0, done.stderr
    made = yaml.safe_load((tmp_path / "inventory/lab/hosts.yml").read_text())["all"]
    hosts = {name: {**made["vars"], **variables} for name, variables in made["hosts"].items()}
    shared = {
        "ansible_user": "carol",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": "-o ProxyJump=gate",
    }
    assert hosts == {
        "n1": {"ansible_host": "n1.example.com", "ansible_port": 2200, **shared},
        "n2": {"ansible_host": "n2.example.com", **shared},
    }
    assert "has no Host n3" in orch("init", "other", "n3", *wanted).stderr


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("../x", ["a"], "nvalid cluster name"),
        ("x", [], "No hosts"),
        ("x", ["a", "b@a"], "Named twice: a"),
        ("x", ["-oProxyCommand=x"], "nvalid host name"),
        ("x", ["a:b"], "invalid port"),
        ("x", ["n[1-999999999]"], "at most 10000 hosts"),
    ],
)
def test_what_cannot_be_is_refused(
    name: str, words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=told.replace("(", r"\(")):
        init(name, words, None)
    assert not list(tmp_path.iterdir())


def test_the_example_is_what_init_writes() -> None:
    hosts = tuple(listed_hosts(["alice@192.0.2.10", "alice@192.0.2.11", "alice@192.0.2.12"]))
    made = render("example", "inventory/example", hosts)
    assert (INVENTORY / "example/hosts.yml").read_text() == made
    assert len(read_inventory(INVENTORY / "example")) == 3
