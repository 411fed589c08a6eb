"""The environment in which orch starts Ansible, with its own configuration."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.errors import RequestError
from orchestrator.files import SHARE, ansible_home
from orchestrator.model.ssh_options import HINT, find_unsafe_setting

CONFIG = SHARE / "ansible.cfg"
# The inventory variable that corresponds to each environment variable of Ansible.
INVENTORY_VARIABLES = {
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
    """Return the environment variables for Ansible.

    Without ANSIBLE_CONFIG, Ansible would load an ansible.cfg in the current folder, and the plug-ins that it names.
    """
    return {**ansible_home(), "ANSIBLE_CONFIG": str(CONFIG)}


def check_environment() -> None:
    """Check the user's environment variables for Ansible.

    Raises:
        RequestError: if they select another configuration, or disable the verification of host keys.
    """
    path = os.environ.get("ANSIBLE_CONFIG")
    if path and Path(path).resolve() != CONFIG.resolve():
        raise RequestError(
            f"ANSIBLE_CONFIG is set to {path}, but orch runs Ansible with its own configuration.",
            hint="Unset it (env -u ANSIBLE_CONFIG orch ...). Put settings into the inventory, or into single "
            "variables such as ANSIBLE_VAULT_PASSWORD_FILE.",
        )
    for variable, inventory_variable in INVENTORY_VARIABLES.items():
        if variable not in os.environ:
            continue
        if setting := find_unsafe_setting({inventory_variable: os.environ[variable]}):
            value = setting.partition(": ")[2]
            raise RequestError(f"Host keys would not be verified: {variable} ({value}).", hint=HINT)
