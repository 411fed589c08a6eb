"""How orch starts Ansible: with a configuration of its own, wherever it is started."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.errors import RequestError
from orchestrator.model.host_key_checks import HINT, find_unsafe_setting
from orchestrator.paths import SHARE
from orchestrator.state import ansible_home

CONFIG = SHARE / "ansible.cfg"
# Ansible's environment variable -> the variable of an inventory that says the same.
SAME = {
    "ANSIBLE_HOST_KEY_CHECKING": "ansible_host_key_checking",
    "ANSIBLE_SSH_HOST_KEY_CHECKING": "ansible_ssh_host_key_checking",
    "ANSIBLE_PARAMIKO_HOST_KEY_CHECKING": "ansible_paramiko_host_key_checking",
    "ANSIBLE_PARAMIKO_HOST_KEY_AUTO_ADD": "ansible_paramiko_host_key_auto_add",
    "ANSIBLE_PARAMIKO_PROXY_COMMAND": "ansible_paramiko_proxy_command",
    "ANSIBLE_SSH_ARGS": "ansible_ssh_args",
    "ANSIBLE_SSH_COMMON_ARGS": "ansible_ssh_common_args",
    "ANSIBLE_SSH_EXTRA_ARGS": "ansible_ssh_extra_args",
    "ANSIBLE_SCP_EXTRA_ARGS": "ansible_scp_extra_args",
    "ANSIBLE_SFTP_EXTRA_ARGS": "ansible_sftp_extra_args",
    "ANSIBLE_SSH_CONTROL_PATH": "ansible_control_path",
    "ANSIBLE_SSH_CONTROL_PATH_DIR": "ansible_control_path_dir",
    "ANSIBLE_SSH_EXECUTABLE": "ansible_ssh_executable",
    "ANSIBLE_SCP_EXECUTABLE": "ansible_scp_executable",
    "ANSIBLE_SFTP_EXECUTABLE": "ansible_sftp_executable",
}


def ansible_environment() -> dict[str, str]:
    """Variables on top of the user's: without ANSIBLE_CONFIG, Ansible reads the ansible.cfg of the
    current folder, and the plug-ins that it names."""
    return {**ansible_home(), "ANSIBLE_CONFIG": str(CONFIG)}


def check_environment() -> None:
    """What the user's environment says to Ansible. Raises RequestError for another configuration,
    and for what leaves host keys unverified."""
    named = os.environ.get("ANSIBLE_CONFIG")
    if named and Path(named).resolve() != CONFIG.resolve():
        raise RequestError(
            f"ANSIBLE_CONFIG names {named}: orch runs Ansible with a configuration of its own.",
            hint="Unset it (env -u ANSIBLE_CONFIG orch ...). What orch must know stands in the "
            "inventory, or in single variables such as ANSIBLE_VAULT_PASSWORD_FILE.",
        )
    for variable, same in SAME.items():
        words = find_unsafe_setting({same: os.environ[variable]}) if variable in os.environ else ""
        if words:
            raise RequestError(f"Host keys would not be verified: {variable} ({words.partition(': ')[2]}).", hint=HINT)
