"""Run `orch init`, and read what it writes with Ansible."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from orchestrator.errors import RequestError
from orchestrator.files import INVENTORY
from orchestrator.load.inventory import read_inventory
from orchestrator.operations.init import init, listed_hosts, render
from tests.local.runs import Orch, expect_exit


def test_inventory_has_the_named_hosts_and_their_variables(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "inventory/prod").mkdir(parents=True)  # all that could be written to a full disk
    process = expect_exit(orch("init", "prod", "alice@node[08-09]:2222", "10.0.0.7", "bob@gpu-box", warm=False))
    assert "orch provision inventory/prod" in process.stdout
    hosts = read_inventory(tmp_path / "inventory/prod")
    assert {name: dict(variables) for name, variables in hosts.items()} == {
        "node08": {"ansible_user": "alice", "ansible_port": 2222},
        "node09": {"ansible_user": "alice", "ansible_port": 2222},
        "node0": {"ansible_host": "10.0.0.7"},
        "gpu-box": {"ansible_user": "bob"},
    }
    assert "already exists" in expect_exit(orch("init", "prod", "node1"), 2).stderr


def test_inventory_has_the_settings_of_an_ssh_configuration(orch: Orch, tmp_path: Path) -> None:
    key = tmp_path / "carol.key"
    key.touch()
    config = tmp_path / "config"
    config.write_text(
        f"Include {tmp_path}/mor?\n"
        "Host n1 n2 other\n  HostName %h.example.com\nHost n1\n  Port 2200\n"
        f"Host n*\n  User carol\n  IdentityFile {tmp_path}/%r.key\n  ProxyJump gate\nHost *\n  User dave\n"
    )
    (tmp_path / "more").write_text("Host b1  # gate\n  ProxyCommand ssh -W %h:%p 'a b'\n  HostKeyAlias lab\n")
    options = ("--from-ssh-config", "--ssh-config", str(config))
    expect_exit(orch("init", "lab", "n[1-2]", *options))
    inventory = yaml.safe_load((tmp_path / "inventory/lab/hosts.yml").read_text())["all"]
    hosts = {name: {**inventory["vars"], **variables} for name, variables in inventory["hosts"].items()}
    shared = {
        "ansible_user": "carol",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": "-o ProxyJump=gate",
    }
    assert hosts == {
        "n1": {"ansible_host": "n1.example.com", "ansible_port": 2200, **shared},
        "n2": {"ansible_host": "n2.example.com", **shared},
    }
    expect_exit(orch("init", "gates", "b*", *options))
    inventory = yaml.safe_load((tmp_path / "inventory/gates/hosts.yml").read_text())["all"]
    arguments = shlex.split(inventory["vars"]["ansible_ssh_common_args"])
    assert {*arguments} == {"-o", "ProxyCommand=ssh -W %h:%p 'a b'", "HostKeyAlias=lab"}
    assert "has no Host gate" in orch("init", "other", "gate", *options).stderr
    assert "has no Host n3" in orch("init", "other", "n3", *options).stderr


@pytest.mark.parametrize(
    ("name", "hosts", "message"),
    [
        ("../x", ["a"], "nvalid cluster name"),
        ("x", [], "No hosts"),
        ("x", ["a", "b@a"], "Named twice: a"),
        ("x", ["10.0.0.1", "10.0.0.[1-2]"], "Named twice: 10.0.0.1"),
        ("x", ["all"], "a group named 'all'"),
        ("x", ["-oProxyCommand=x"], "nvalid host name"),
        ("x", ["a:b"], "invalid port"),
        ("x", ["n[1-999999999]"], "more than 10000 hosts"),
        ("x", ["node1:4", "node2:4"], "4 may be a port or a number of slots"),
        ("x", [__file__], "is a file"),
        ("x", ["node{1..4}"], "'node{1..4}' is not a host"),
    ],
)
def test_invalid_request_is_refused(
    name: str, hosts: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=re.escape(message)):
        init(name, hosts, None)
    assert not list(tmp_path.iterdir())


def test_inventory_has_the_hosts_of_a_hostfile_and_of_lists(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("alice@n1 slots=4\nn2 slots=4\n")
    process = expect_exit(orch("init", "lab", "gpu[01,03],ssh://n9:443", "rack[1:2][a:b]", "--hostfile", "hostfile"))
    assert "--ppn" in process.stdout
    hosts = {name: dict(variables) for name, variables in read_inventory(tmp_path / "inventory/lab").items()}
    assert hosts.pop("n1") == {"ansible_user": "alice"}
    assert hosts.pop("n9") == {"ansible_port": 443}
    assert list(hosts) == ["gpu01", "gpu03", "rack1a", "rack1b", "rack2a", "rack2b", "n2"]


def test_list_of_hosts_may_be_longer_than_a_name_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    numbers = ",".join(map(str, range(1000, 1100)))
    assert "node1099" in (init("lab", [f"node[{numbers}]"], None) / "hosts.yml").read_text()


def test_names_and_users_stay_texts_in_yaml() -> None:
    hosts = tuple(listed_hosts(["yes@1", "12@null", "~@off:2222"]))
    inventory = yaml.safe_load(render("lab", "lab", hosts))["all"]
    assert inventory["hosts"] == {
        "1": {"ansible_user": "yes"},
        "null": {"ansible_user": "12"},
        "off": {"ansible_user": "~", "ansible_port": 2222},
    }


def test_example_inventory_is_what_init_writes() -> None:
    hosts = tuple(listed_hosts(["alice@192.0.2.10", "alice@192.0.2.11", "alice@192.0.2.12"]))
    assert (INVENTORY / "example/hosts.yml").read_text() == render("example", "inventory/example", hosts)
    assert len(read_inventory(INVENTORY / "example")) == 3
