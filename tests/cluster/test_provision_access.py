"""Provision with vaults, a sudo password, a jump host and a leftover lock."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.sites import LOCK, ROOT, Site, drift, nodes_by_name, run_on
from tests.support.files import write_files

pytestmark = pytest.mark.cluster

PASSWORD = "open sesame"


def run_ansible_vault(command: str, password_file: Path, value: str) -> str:
    """Encrypt a file or, with `encrypt_string`, return a value in the notation of an inventory."""
    program = Path(sys.executable).with_name("ansible-vault")
    arguments = [program, command, "--vault-password-file", password_file, value]
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "vault password"
    path.write_text("of the vault\n")
    return path


def test_sync_writes_secret_of_vault_and_deletes_it_without_vault(site: Site, password_file: Path) -> None:
    """Check also that the second sync takes over a lock that another controller has left behind."""
    site.write_inventory("node0", "node1", orch_secrets=None)
    variables = site.inventory.parent / "host_vars" / "node0.yml"
    value = textwrap.indent(run_ansible_vault("encrypt_string", password_file, "hf_fromTheVault"), "    ").strip()
    write_files(variables.parent, {variables.name: f"orch_secrets:\n  HF_TOKEN: {value}\n"})
    replace(site, variables={"ANSIBLE_VAULT_PASSWORD_FILE": str(password_file)}).orch(command="sync")
    assert json.loads(run_on(site, "node0", "cat", f"{ROOT}/secrets.json")) == {"HF_TOKEN": "hf_fromTheVault"}
    state_files = [path for path in (site.folder / "state").rglob("*") if path.is_file()]
    assert not [path for path in state_files if b"hf_fromTheVault" in path.read_bytes()]
    variables.unlink()
    run_on(site, "node1", "rm", f"{ROOT}/train/node.py")
    lock = {"token": "x", "user": "eve", "host": "far", "pid": "7", "what": "sync", "started": "then"}
    run_on(site, "node0", "sh", "-c", f"echo '{json.dumps(lock)}' >{LOCK}; touch -d '7 hours ago' {LOCK}")
    done = site.run("sync", str(site.inventory), "--json", seconds=120)
    assert drift(json.loads(done.stdout)) == {"node0": {"secrets.json"}, "node1": {"train/node.py"}}
    assert "node0: took over a lock that was taken 7 hours ago: eve@far (process 7)" in done.stderr
    for node in ("node0", "node1"):
        assert not {"secrets.json", ".lock"} & {*run_on(site, node, "ls", "-A", ROOT).split()}


@pytest.fixture
def ada(site: Site, tmp_path: Path) -> Site:
    """Return the site of a user whose sudo requires a password.

    node0 resolves the name node1 to a loopback address. node1 is reached through node0, at another port.
    """
    script = f"""
        id ada 2>/dev/null || useradd --create-home --shell /bin/bash ada
        echo 'ada:{PASSWORD}' | chpasswd
        echo 'ada ALL=(ALL) ALL' >/etc/sudoers.d/ada
        install -d -m 0700 -o ada -g ada /home/ada/.ssh
        install -m 0600 -o ada -g ada /root/.ssh/authorized_keys /home/ada/.ssh/
    """
    for node in ("node0", "node1"):
        site.cluster.exec(node, ("sh", "-ec", script))
    site.cluster.exec("node0", ("sed", "-i", "1i 127.0.1.1 node1", "/etc/hosts"))
    site.cluster.exec("node1", ("/usr/sbin/sshd", "-p", "2222"))
    ada_site = replace(site, folder=tmp_path)
    ada_site.write_inventory("node0", "node1", ansible_user="ada")
    known_hosts, address = tmp_path / "known_hosts", site.cluster.address("node1")
    text = (site.cluster.state / "known_hosts").read_text()
    known_hosts.write_text(text + text.replace(address, f"[{address}]:2222"))
    options = f"-o UserKnownHostsFile={known_hosts} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
    jump = f"-o ProxyCommand='ssh -F {site.cluster.ssh_config} -W %h:%p node0'"
    variables = {"ansible_port": 2222, "ansible_ssh_common_args": f"{options} {jump}"}
    write_files(ada_site.inventory.parent, {"host_vars/node1.yml": json.dumps(variables)})
    return ada_site


def test_names_of_nodes_behind_a_jump_host_need_a_sudo_password(ada: Site, site: Site, password_file: Path) -> None:
    """Run `provision --dry-run` without a password, with an unreadable one and with the right one."""
    report_without = nodes_by_name(ada.orch("--dry-run", code=1))
    assert "the name node1 resolves to 127.0.1.1" in report_without["node0"]["problem"]
    assert "not changed" in report_without["node1"]["problem"]
    group_variables = f"{ada.inventory.parent}/group_vars/all.yml"
    write_files(ada.inventory.parent, {"group_vars/all.yml": f"ansible_become_password: {PASSWORD}\n"})
    run_ansible_vault("encrypt", password_file, group_variables)
    assert "ANSIBLE_VAULT_PASSWORD_FILE" in ada.orch("--dry-run", code=2)["stderr"]
    vault_password = {"ANSIBLE_VAULT_PASSWORD_FILE": str(password_file)}
    report = replace(ada, variables=vault_password).orch("--dry-run", code=1)
    assert [node["failed"] for node in report["nodes"]] == [0, 0]
    assert "/etc/hosts" in drift(report)["node0"]
    site.cluster.exec("node0", ("sed", "-i", "/^127.0.1.1 node1$/d", "/etc/hosts"))
