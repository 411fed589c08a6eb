"""Check that orch detects settings that disable the verification of host keys."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import RequestError
from orchestrator.load.ansible import CONFIG
from orchestrator.load.inventory import read_inventory
from orchestrator.model.host_key_checks import find_unsafe_argument, find_unsafe_setting
from orchestrator.provisioning.playbook import Playbook
from orchestrator.provisioning.playbook import settings as settings_of
from tests.conftest import require_program

OFF = [
    "-o StrictHostKeyChecking=no",
    "-oStrictHostKeyChecking=no",
    "-o stricthostkeychecking=off",
    "-o 'StrictHostKeyChecking no'",
    "-o StrictHostKeyChecking=false",
    "-o StrictHostKeyChecking=accept-new",
    "-o 'Strict''HostKeyChecking'=no",
    "-o StrictHostKeyChecking=yes -o StrictHostKeyChecking=no",
    "-o UserKnownHostsFile=/dev/null",
    "-o UserKnownHostsFile=none",
    "-o KnownHostsCommand=/bin/echo",
    "-o NoHostAuthenticationForLocalhost=yes",
    "-o ProxyCommand='ssh -o StrictHostKeyChecking=no -W %h:%p jump'",
    "-o ProxyCommand=\"ssh -o 'StrictHostKeyChecking no' -W %h:%p jump\"",
    "-F /home/me/other",
    "-C -F/home/me/other",
]
ON = [
    "",
    "-J jump",
    "-o UserKnownHostsFile=/home/me/known_hosts -o StrictHostKeyChecking=yes",
    "-o 'UserKnownHostsFile=\"/home/me/known hosts\"' -o IdentitiesOnly=yes",
    "-o StrictHostKeyChecking=ask",
    "-o ProxyCommand='ssh -W %h:%p jump'",
    "-o ProxyCommand='ssh -F /home/me/other -W %h:%p jump'",
    "-i -F -C",
]


@pytest.mark.parametrize("text", OFF)
def test_arguments_that_turn_checks_off_are_found(text: str) -> None:
    assert find_unsafe_argument(text)
    assert find_unsafe_setting({"ansible_ssh_extra_args": text})


@pytest.mark.parametrize("text", ON)
def test_arguments_that_leave_checks_on_are_accepted(text: str) -> None:
    assert find_unsafe_setting({"ansible_ssh_common_args": text}) == ""


@pytest.mark.parametrize("value", [False, "false", "no", 0, "0", "off", "{{ off }}", None])
@pytest.mark.parametrize("name", ["ansible_host_key_checking", "ansible_ssh_host_key_checking"])
def test_settings_that_turn_checks_off_are_found(name: str, value: object) -> None:
    assert name in find_unsafe_setting({name: value})
    assert find_unsafe_setting({name: True}) == find_unsafe_setting({name: "yes"}) == ""


def test_a_program_that_is_not_ssh_may_leave_anything_out() -> None:
    assert find_unsafe_setting({"ansible_ssh_executable": "/home/me/bin/ssh"})
    assert find_unsafe_setting({"ansible_ssh_executable": "/usr/bin/ssh"}) == ""


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(["ansible_ssh_args", "ansible_host_key_checking"]),
        st.one_of(st.text(), st.integers(), st.none(), st.booleans()),
    )
)
def test_any_value_of_a_setting_can_be_checked(variables: dict[str, object]) -> None:
    assert isinstance(find_unsafe_setting(variables), str)


SHARED = [  # Other users may have opened these connections, to any host.
    {"ansible_ssh_common_args": "-o ControlPath=/tmp/%r"},
    {"ansible_ssh_extra_args": "-oControlPath=~/cp"},
    {"ansible_ssh_common_args": "-S /tmp/socket"},
    {"ansible_ssh_common_args": "-CS/tmp/socket"},
    {"ansible_control_path": "/tmp/%%r"},
    {"ansible_control_path_dir": "/tmp"},
]


@pytest.mark.parametrize("variables", SHARED, ids=str)
def test_a_shared_connection_of_others_passes_all_host_keys(variables: dict[str, object]) -> None:
    assert find_unsafe_setting(variables)


def test_no_shared_connection_is_fine() -> None:
    assert find_unsafe_setting({"ansible_ssh_common_args": "-o ControlPath=none -S none -C"}) == ""


def test_arguments_that_replace_those_of_orch_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(json.dumps({"all": {"hosts": {"node0": {"ansible_ssh_args": "-C"}}}}))
    with pytest.raises(RequestError, match="node0: ansible_ssh_args would replace") as refused:
        read_inventory(path)
    assert "ansible_ssh_common_args" in refused.value.hint


VARIABLES = [
    {"ansible_host_key_checking": False},
    {"ansible_ssh_common_args": "-o StrictHostKeyChecking=no"},
    {"ansible_ssh_args": "-o UserKnownHostsFile=/dev/null"},
]


@pytest.mark.parametrize("variables", VARIABLES, ids=str)
def test_an_inventory_that_turns_checks_off_is_refused(variables: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(json.dumps({"all": {"hosts": {"node0": variables}}}))
    for _ in range(2):  # A refused inventory is not cached as safe.
        with pytest.raises(RequestError, match="node0: host keys would not be verified") as refused:
            read_inventory(path)
        assert "ssh-keyscan" in refused.value.hint


ENVIRONMENT = {
    "ANSIBLE_HOST_KEY_CHECKING": "False",
    "ANSIBLE_SSH_HOST_KEY_CHECKING": "no",
    "ANSIBLE_SSH_ARGS": "-o StrictHostKeyChecking=no",
    "ANSIBLE_SSH_COMMON_ARGS": "-o StrictHostKeyChecking=accept-new",
    "ANSIBLE_SSH_EXECUTABLE": "/tmp/ssh",
    "ANSIBLE_SSH_CONTROL_PATH": "/tmp/%%r",
    "ANSIBLE_SSH_CONTROL_PATH_DIR": "/tmp",
}


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an inventory that Ansible has already read."""
    path = tmp_path_factory.mktemp("remembered") / "hosts.yml"
    path.write_text("all: {hosts: {node0: {ansible_host: 192.0.2.1}}}")
    read_inventory(path)
    return path


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_an_environment_that_turns_checks_off_is_refused_although_the_inventory_is_cached(
    name: str, remembered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_inventory(remembered)
    monkeypatch.setenv(name, ENVIRONMENT[name])
    with pytest.raises(RequestError, match=name) as refused:
        read_inventory(remembered)
    assert "ssh-keyscan" in refused.value.hint


def test_nothing_is_provisioned_with_such_an_environment(remembered: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "orchestrator.cli.main", "provision", str(remembered)]
    name, value = next(iter(ENVIRONMENT.items()))
    done = subprocess.run(argv, env=os.environ | {name: value}, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert name in done.stderr


def test_the_users_ssh_configuration_does_not_turn_checks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify host keys even if ~/.ssh/config disables it: options on the command line win."""
    require_program("ssh")
    (tmp_path / "config").write_text("Host *\n    StrictHostKeyChecking no\n")
    config = configparser.ConfigParser(interpolation=None)
    config.read(CONFIG)
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", "-C")
    playbook = Playbook(name="x", inventory=tmp_path, variables={}, state=tmp_path, log=tmp_path)
    for text in (config["ssh_connection"]["ssh_args"], settings_of(playbook)["ANSIBLE_SSH_ARGS"]):
        argv = ["ssh", "-F", str(tmp_path / "config"), *shlex.split(text), "-G", "host"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert "stricthostkeychecking true" in done.stdout
