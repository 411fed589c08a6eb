"""Provision with vaults, sudo passwords and a leftover lock."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.sites import LOCK, ROOT, Site, drift, nodes_by_name, run_on

pytestmark = pytest.mark.cluster

PASSWORD = "open sesame"


def write_vault(path: Path, password_file: Path, text: str) -> None:
    """Write a file, and encrypt it with the password for ansible-vault."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    program = Path(sys.executable).with_name("ansible-vault")
    command = [program, "encrypt", "--vault-password-file", password_file, path]
    subprocess.run(command, check=True, capture_output=True)


def encrypt_value(password_file: Path, text: str) -> str:
    """Return a value encrypted for ansible-vault, in the notation of an inventory."""
    program = Path(sys.executable).with_name("ansible-vault")
    command = [program, "encrypt_string", "--vault-password-file", password_file, text]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "vault password"
    path.write_text("of the vault\n")
    return path


def test_sync_writes_secret_of_vault_and_deletes_it_without_vault(site: Site, password_file: Path) -> None:
    """Check also that the second sync takes over a lock that another controller has left behind."""
    site.write_inventory("node0", "node1", orch_secrets=None)
    variables = site.inventory.parent / "host_vars" / "node0.yml"
    variables.parent.mkdir()
    value = textwrap.indent(encrypt_value(password_file, "hf_fromTheVault"), "    ").strip()
    variables.write_text(f"orch_secrets:\n  HF_TOKEN: {value}\n")
    site_with_password = replace(site, variables={"ANSIBLE_VAULT_PASSWORD_FILE": str(password_file)})
    site_with_password.orch(command="sync")
    secret = json.loads(run_on(site, "node0", "cat", f"{ROOT}/secrets.json"))
    assert secret == {"HF_TOKEN": "hf_fromTheVault"}
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
    """Return the site of a user whose sudo requires a password; node0 resolves the name node1 to a loopback address."""
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
    ada_site = replace(site, folder=tmp_path)
    ada_site.write_inventory("node0", "node1", ansible_user="ada")
    return ada_site


def test_provision_writes_names_of_nodes_only_with_sudo_password(
    ada: Site, site: Site, password_file: Path, tmp_path: Path
) -> None:
    """Run `provision --dry-run` without a password, with a wrong one, with an unreadable one and with the right one."""
    report_without = nodes_by_name(ada.orch("--dry-run", code=1))
    assert "on node0 the name node1 resolves to 127.0.1.1" in report_without["node0"]["problem"]
    assert "not changed" in report_without["node1"]["problem"]

    (tmp_path / "wrong").write_text("close sesame\n")
    wrong_password = {"ANSIBLE_BECOME_PASSWORD_FILE": str(tmp_path / "wrong")}
    report_with_wrong = nodes_by_name(replace(ada, variables=wrong_password).orch("--dry-run", code=1))
    assert "the sudo password is wrong" in report_with_wrong["node0"]["problem"]

    group_variables = ada.inventory.parent / "group_vars" / "all.yml"
    write_vault(group_variables, password_file, f"ansible_become_password: {PASSWORD}\n")
    assert "ANSIBLE_VAULT_PASSWORD_FILE" in ada.orch("--dry-run", code=2)["stderr"]
    vault_password = {"ANSIBLE_VAULT_PASSWORD_FILE": str(password_file)}
    report = replace(ada, variables=vault_password).orch("--dry-run", code=1)
    assert [node["failed"] for node in report["nodes"]] == [0, 0]
    assert "/etc/hosts" in drift(report)["node0"]
    site.cluster.exec("node0", ("sed", "-i", "/^127.0.1.1 node1$/d", "/etc/hosts"))
