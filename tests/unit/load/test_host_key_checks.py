"""Settings that disable the verification of host keys are detected."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

import pytest

from orchestrator.errors import RequestError
from orchestrator.load.inventory import CONFIG, parse_listing, read_inventory
from orchestrator.load.ssh_options import find_unsafe_argument, find_unsafe_setting
from orchestrator.provisioning.playbook import Playbooks, ansible_variables
from tests.support.openssh import openssh_options

UNSAFE_ARGUMENTS = [
    "-oStrictHostKeyChecking=no",
    "-o stricthostkeychecking=off",
    "-o 'StrictHostKeyChecking no'",
    "-o StrictHostKeyChecking=accept-new",
    "-o 'Strict''HostKeyChecking'=no",
    "-o StrictHostKeyChecking=yes -o StrictHostKeyChecking=no",
    "-o UserKnownHostsFile=/dev/null",
    "-o UserKnownHostsFile=none",
    "-o KnownHostsCommand=/bin/echo",
    "-o NoHostAuthenticationForLocalhost=yes",
    "-o ProxyCommand=\"ssh -o 'StrictHostKeyChecking no' -W %h:%p jump\"",
    "-F /home/me/other",
    "-C -F/home/me/other",
    # Other users may have opened these shared connections, to any host.
    "-o ControlPath=/tmp/%r",
    "-oControlPath=~/cp",
    "-S /tmp/socket",
    "-CS/tmp/socket",
]
SAFE_ARGUMENTS = [
    "",
    "-o UserKnownHostsFile=/home/me/known_hosts -o StrictHostKeyChecking=yes",
    "-o 'UserKnownHostsFile=\"/home/me/known hosts\"' -o IdentitiesOnly=yes",
    "-o StrictHostKeyChecking=ask",
    "-o ProxyCommand='ssh -F /home/me/other -W %h:%p jump'",
    "-o ControlPath=none -S none -C",
]


def test_unsafe_arguments_are_detected_and_safe_ones_accepted() -> None:
    for arguments in UNSAFE_ARGUMENTS:
        assert find_unsafe_argument(arguments)
        for name in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
            assert find_unsafe_setting({name: arguments})
    for arguments in SAFE_ARGUMENTS:
        assert find_unsafe_setting({"ansible_ssh_common_args": arguments}) == ""


def test_disabled_host_key_checking_and_unsafe_paths_are_detected() -> None:
    for name in ("ansible_host_key_checking", "ansible_ssh_host_key_checking"):
        for value in (False, "false", "no", 0, "0", "off", "{{ off }}", None):
            assert name in find_unsafe_setting({name: value}), value
        assert find_unsafe_setting({name: True}) == find_unsafe_setting({name: "yes"}) == ""
    assert find_unsafe_setting({"ansible_control_path": "/tmp/%%r"})
    assert find_unsafe_setting({"ansible_control_path_dir": "/tmp"})
    assert find_unsafe_setting({"ansible_ssh_executable": "/home/me/bin/ssh"}), "it may ignore options"
    assert find_unsafe_setting({"ansible_ssh_executable": "/usr/bin/ssh"}) == ""


NOT_VERIFIED = ("would not be verified", "ssh-keyscan")
REPLACED = ("ansible_ssh_args would replace", "ansible_ssh_common_args")


def test_unsafe_variables_of_a_host_are_refused() -> None:
    for variables, message, hint in (
        ({"ansible_ssh_common_args": "-o StrictHostKeyChecking=no"}, *NOT_VERIFIED),  # arguments
        ({"ansible_ssh_args": "-o UserKnownHostsFile=/dev/null"}, *NOT_VERIFIED),  # replaced arguments
        ({"ansible_ssh_args": "-C"}, *REPLACED),  # replacement
        ({"ansible_ssh_extra_args": "-L 1:x:1"}, "option -L not recognized", "-o Option=value"),
    ):
        with pytest.raises(RequestError, match=f"node0: .*{message}") as exc_info:
            parse_listing({"_meta": {"hostvars": {"node0": variables}}, "all": {"hosts": ["node0"]}})
        assert hint in exc_info.value.hint


UNSAFE_ENVIRONMENT = {
    "ANSIBLE_HOST_KEY_CHECKING": "False",
    "ANSIBLE_SSH_HOST_KEY_CHECKING": "no",
    "ANSIBLE_SSH_ARGS": "-o StrictHostKeyChecking=no",
    "ANSIBLE_SSH_COMMON_ARGS": "-o StrictHostKeyChecking=accept-new",
    "ANSIBLE_SSH_EXECUTABLE": "/tmp/ssh",
    "ANSIBLE_SSH_CONTROL_PATH": "/tmp/%%r",
    "ANSIBLE_SSH_CONTROL_PATH_DIR": "/tmp",
}


def test_unsafe_environment_is_refused_even_if_the_inventory_is_cached(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {hosts: {node0: {ansible_host: 192.0.2.1}}}")
    for name, value in UNSAFE_ENVIRONMENT.items():
        assert read_inventory(inventory)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(RequestError, match=name) as exc_info:
                read_inventory(inventory)
        assert "ssh-keyscan" in exc_info.value.hint


def test_ssh_configuration_of_the_user_cannot_disable_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify host keys even if ~/.ssh/config disables it: options on the command line win."""
    (tmp_path / "config").write_text("Host *\n    StrictHostKeyChecking no\n")
    config = configparser.ConfigParser(interpolation=None)
    config.read(CONFIG)
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", "-C")
    playbooks = Playbooks(inventory=tmp_path, state=tmp_path, log=tmp_path)
    for text in (config["ssh_connection"]["ssh_args"], ansible_variables(playbooks, forks=1)["ANSIBLE_SSH_ARGS"]):
        options = openssh_options("-F", str(tmp_path / "config"), *shlex.split(text), "host")
        assert options["stricthostkeychecking"] == "true"
