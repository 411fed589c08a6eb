"""Inventories: how they are found and read, and the names and configuration that they may contain."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import RequestError
from orchestrator.load.clusters import find_inventory
from orchestrator.load.inventory import HAS_PASSWORD, cache_path, parse_listing, read_inventory
from tests.support.files import write_files, write_program

OTHER_USER = 65534
INVENTORY = """
all:
  children:
    fast:
      hosts:
        node10: {ansible_host: 10.0.0.10, api_token: secret-word}
        node2: {orch_python: /x/python, ansible_ssh_common_args: -C}
    slow:
      hosts:
        a: {ansible_become_password: open-sesame}
"""


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    return path


def test_hosts_are_read_in_their_order_without_secrets_or_a_configuration_of_the_current_folder(
    inventory: Path, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ignore a configuration in the folder: it names plug-ins, which Ansible imports as Python code."""
    marker = tmp_path / "ran"
    evil = f"open({str(marker)!r}, 'w').close()\n"
    write_files(tmp_path, {"ansible.cfg": "[defaults]\nvars_plugins = ./own\n", "own/evil.py": evil})
    monkeypatch.chdir(tmp_path)
    hosts = read_inventory(inventory)
    assert not marker.exists()
    assert list(hosts) == ["node10", "node2", "a"]
    assert hosts["node10"]["ansible_host"] == "10.0.0.10"
    assert hosts["node2"] == {"orch_python": "/x/python", "ansible_ssh_common_args": "-C"}
    assert [name for name, variables in hosts.items() if HAS_PASSWORD in variables] == ["a"]
    (path,) = (path for path in empty_cache.rglob("*") if path.is_file())
    assert "secret-word" not in path.read_text()
    assert "open-sesame" not in path.read_text()


def test_changed_inventory_and_each_run_of_a_program_are_not_read_from_the_cache(inventory: Path) -> None:
    paths = [cache_path(inventory)]
    inventory.write_text(INVENTORY.replace("node10", "node11"))
    paths.append(cache_path(inventory))
    for port in (2222, 2223):
        write_files(inventory.parent, {"group_vars/all.yml": f"ansible_port: {port}\n"})
        paths.append(cache_path(inventory))
    assert len({*paths}) == 4
    assert cache_path(write_program(inventory.parent / "dynamic", "")) is None


def test_unreadable_inventory_or_configuration_is_refused(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory.write_text("all: [\n")
    with pytest.raises(RequestError, match=r"Ansible cannot read inventory .*YAML parsing failed.*:2:"):
        read_inventory(inventory)
    long_path = inventory.parent / ("a-name" * 10) / inventory.name
    write_files(long_path.parent, {inventory.name: "all: {hosts: [node1]}\n"})
    with pytest.raises(RequestError, match='"hosts" entry for "all" group, requires a dictionary'):
        read_inventory(long_path)
    monkeypatch.setenv("ANSIBLE_CONFIG", str(inventory.parent / "ansible.cfg"))
    with pytest.raises(RequestError, match="its own configuration"):
        read_inventory(inventory)


@pytest.mark.parametrize("path", ["local", "inventory/local", "inventory/lab", "lab"])
def test_bare_name_runs_no_program_of_this_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / path, f"#!/bin/sh\ntouch {tmp_path / 'ran'}\necho '{{}}'\n")
    monkeypatch.chdir(tmp_path)
    name = Path(path).name
    if name == "local":
        assert list(read_inventory(find_inventory(name))) == ["node0"]
    else:
        with pytest.raises(RequestError) as exc_info:
            find_inventory(name)
        suggested_path = exc_info.value.hint.removeprefix("As a path: ").removesuffix(".")
        assert find_inventory(suggested_path).resolve() == tmp_path / path
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="creates files of another user")
@pytest.mark.parametrize("untrusted", ["inventory", "inventory/lab", "inventory/lab/group_vars/all.yml"])
@pytest.mark.parametrize("change", ["owner", "mode", "link"])
def test_bare_name_is_no_inventory_that_another_user_could_have_written(
    untrusted: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible executes lookups in an inventory, so its author could run any program."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "inventory/lab", {"hosts.yml": "all: {hosts: {h1: }}\n", "group_vars/all.yml": ""})
    assert find_inventory("lab") == Path("inventory/lab")
    path = tmp_path / untrusted
    if change == "owner":
        os.chown(path, OTHER_USER, OTHER_USER)
    elif change == "mode":
        path.chmod(path.stat().st_mode | 0o002)
    else:
        path.rename(tmp_path / "target")
        path.symlink_to(tmp_path / "target")
    with pytest.raises(RequestError) as exc_info:
        find_inventory("lab")
    assert "is not trusted" in exc_info.value.message
    assert find_inventory("inventory/lab") == Path("inventory/lab"), "the user has named its path"


def test_invalid_host_or_variable_is_rejected() -> None:
    names = ("-oProxyCommand=id", "a b", "a\nb", "a;b", "$(id)", "{{ 1 }}", "a" * 64, "", "é")
    values = (
        ("ansible_host", "10.0.0.1\nORCH_END_OF_FILE\nid"),  # host with more lines
        ("ansible_host", "-oProxyCommand=id"),  # host like an option
        ("orch_address", "10.0.0.1\nORCH_END_OF_FILE\nid"),  # address with more lines
        ("orch_address", ["10.0.0.1"]),  # address as list
        ("ansible_port", "22 -o ProxyCommand=id"),  # port with an option
        ("orch_port", 0),
        ("ansible_port", 70000),  # large port
        ("ansible_ssh_private_key_file", "key"),  # relative path
    )
    for host, variables, message in (
        *((name, {}, "is not a host name") for name in names),
        *(("node0", {variable: value}, f"{variable} of node0: ") for variable, value in values),
        ("node0", {"orch_env": {"A": "", "E": None}}, "orch_env of node0 in the inventory: E has no value"),
        ("node0", {"orch_env": {"RANK": 7}}, "orch_env of node0 in the inventory: RANK: orch or the launcher sets"),
        ("node0", {"orch_root": "/data", "orch_evn": {"A": "1"}}, "'orch_evn' of node0"),
    ):
        with pytest.raises(RequestError, match=message) as exc_info:
            parse_listing({"_meta": {"hostvars": {host: variables}}, "all": {"hosts": [host]}})
    assert exc_info.value.hint == "Did you mean 'orch_env'?"


def test_groups_with_several_parents_are_read_once() -> None:
    layers = {f"{name}{i}": {"children": [f"a{i + 1}", f"b{i + 1}"]} for name in "ab" for i in range(60)}
    leaves = {"a60": {"hosts": ["y", "x"]}, "b60": {"hosts": ["x", "z"]}}
    assert [*parse_listing({"all": {"children": ["a0", "b0"]}, **layers, **leaves}).hosts] == ["y", "x", "z"]
