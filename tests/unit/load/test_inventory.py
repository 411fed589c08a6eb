"""Inventories: how they are found, the names they may contain, and the configuration around them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import RequestError
from orchestrator.load.clusters import find_inventory
from orchestrator.load.inventory import parse_listing, read_inventory
from orchestrator.model.host_names import is_host

MARK = "#!/bin/sh\ntouch {mark}\necho '{{}}'\n"


def program(path: Path, mark: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MARK.format(mark=mark))
    path.chmod(0o755)


@pytest.mark.parametrize("place", ["local", "inventory/local", "inventory/lab", "lab"])
def test_a_bare_name_is_never_a_program_of_the_current_folder(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / place, tmp_path / "ran")
    monkeypatch.chdir(tmp_path)
    name = Path(place).name
    if name == "local":
        assert list(read_inventory(find_inventory(name))) == ["node0"]
    else:
        with pytest.raises(RequestError) as refused:
            find_inventory(name)
        assert refused.value.hint.startswith("As a path: ")
        path = refused.value.hint.removeprefix("As a path: ").removesuffix(".")
        assert find_inventory(path).resolve() == tmp_path / place
    assert not (tmp_path / "ran").exists()


STRANGER = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="creates files of another user")
@pytest.mark.parametrize("untrusted", ["inventory", "inventory/lab", "inventory/lab/group_vars/all.yml"])
@pytest.mark.parametrize("change", ["owner", "mode", "link"])
def test_bare_name_is_no_inventory_that_another_user_could_have_written(
    untrusted: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible executes lookups in an inventory, so its author could run any program."""
    monkeypatch.chdir(tmp_path)
    lab = tmp_path / "inventory" / "lab"
    (lab / "group_vars").mkdir(parents=True)
    (lab / "hosts.yml").write_text("all: {hosts: {h1: }}\n")
    (lab / "group_vars" / "all.yml").write_text("")
    assert find_inventory("lab") == Path("inventory/lab")
    path = tmp_path / untrusted
    if change == "owner":
        os.chown(path, STRANGER, STRANGER)
    elif change == "mode":
        path.chmod(path.stat().st_mode | 0o002)
    else:
        path.rename(tmp_path / "target")
        path.symlink_to(tmp_path / "target")
    with pytest.raises(RequestError) as refused:
        find_inventory("lab")
    assert "is not trusted" in refused.value.message
    assert find_inventory("inventory/lab") == Path("inventory/lab"), "the user has named its path"


def test_a_pattern_is_matched_without_the_current_folders_configuration(tmp_path: Path) -> None:
    """Isolate Ansible, which reads its configuration also as a library of this process."""
    (tmp_path / "ansible.cfg").write_text("[defaults]\nforks = 77\n")
    (tmp_path / "hosts.yml").write_text("all:\n  hosts:\n    node[0:9]:\n")
    text = (
        "from pathlib import Path\n"
        "from orchestrator.load.inventory import read_listing\n"
        "from orchestrator.load.selection import select\n"
        "source = Path('hosts.yml')\n"
        "select(source, read_listing(source), nodes='node[3-4]', exclude=None)\n"
        "from ansible import constants\n"
        "print(constants.DEFAULT_FORKS)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "16\n", done.stderr


def test_ansible_reads_no_configuration_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore such a file, because it names plug-ins, which Ansible imports as Python code."""
    (tmp_path / "ansible.cfg").write_text("[defaults]\nvars_plugins = ./own\n")
    (tmp_path / "own").mkdir()
    mark = tmp_path / "ran"
    (tmp_path / "own/evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    (tmp_path / "hosts.yml").write_text("all: {hosts: {node0: {}}}")
    monkeypatch.chdir(tmp_path)
    assert list(read_inventory(tmp_path / "hosts.yml")) == ["node0"]
    assert not mark.exists()


def test_another_configuration_of_ansibles_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {node0: {}}}")
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "ansible.cfg"))
    with pytest.raises(RequestError, match="its own configuration"):
        read_inventory(path)


@pytest.mark.parametrize("name", ["-oProxyCommand=id", "a b", "a\nb", "a;b", "$(id)", "{{ 1 }}", "a" * 64, "", "é"])
def test_a_host_that_could_be_read_as_something_else_is_refused(name: str, tmp_path: Path) -> None:
    listing = {"_meta": {"hostvars": {}}, "all": {"hosts": [name]}}
    with pytest.raises(RequestError, match="is not a host name"):
        parse_listing(listing)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ansible_host", "10.0.0.1\nORCH_END_OF_FILE\nid"),
        ("ansible_host", "-oProxyCommand=id"),
        ("orch_address", "10.0.0.1\nORCH_END_OF_FILE\nid"),
        ("orch_address", ["10.0.0.1"]),
        ("ansible_port", "22 -o ProxyCommand=id"),
        ("orch_port", 0),
        ("ansible_port", 70000),
    ],
)
def test_so_is_an_address_or_a_port(variable: str, value: object) -> None:
    listing = {"_meta": {"hostvars": {"node0": {variable: value}}}, "all": {"hosts": ["node0"]}}
    with pytest.raises(RequestError, match=f"{variable} of node0: "):
        parse_listing(listing)


def test_a_misspelled_variable_is_an_error_that_names_the_right_one() -> None:
    variables = {"orch_root": "/data", "orch_evn": {"A": "1"}}
    listing = {"_meta": {"hostvars": {"node0": variables}}, "all": {"hosts": ["node0"]}}
    with pytest.raises(RequestError, match="'orch_evn' of node0") as exc_info:
        parse_listing(listing)
    assert exc_info.value.hint == "Did you mean 'orch_env'?"


@pytest.mark.parametrize("name", ["node0", "node_0", "10.0.0.1", "fe80::1", "a.b.example.com"])
def test_usual_names_and_addresses_are_taken(name: str) -> None:
    variables = {"ansible_host": name, "orch_address": "{{ ansible_host }}", "ansible_port": "22"}
    listing = {"_meta": {"hostvars": {name: variables}}, "all": {"hosts": [name]}}
    assert list(parse_listing(listing).hosts) == [name]


NAMES = st.sampled_from(
    ["_meta", "hostvars", "all", "lab", "hosts", "children", "vars", "node0", "ansible_host", "orch_x"]
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(answer=st.dictionaries(NAMES, ANY, max_size=4) | ANY)
def test_any_answer_of_a_program_is_a_listing_or_refused(answer: object) -> None:
    """Accept or reject any output of a dynamic inventory, such as cyclic groups and wrong types."""
    try:
        listing = parse_listing(answer)
    except RequestError:
        return
    assert all(is_host(name) for name in listing.hosts)
