"""Vaults, sudo with a password, inventories that are programs: the ways of Ansible's users."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.sites import ROOT, Site, drift, nodes_of, on

pytestmark = pytest.mark.cluster

PASSWORD = "open sesame"


def vault(path: Path, password_file: Path, text: str) -> None:
    """A file that Ansible can read with that password."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    program = Path(sys.executable).with_name("ansible-vault")
    command = [program, "encrypt", "--vault-password-file", password_file, path]
    subprocess.run(command, check=True, capture_output=True)


def vaulted(password_file: Path, text: str) -> str:
    """A single value, as it stands in an inventory."""
    program = Path(sys.executable).with_name("ansible-vault")
    command = [program, "encrypt_string", "--vault-password-file", password_file, text]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "vault password"
    path.write_text("of the vault\n")
    return path


def test_a_secret_of_a_vault_comes_and_goes(site: Site, password_file: Path) -> None:
    site.describe("node0", "node1", orch_secrets=None)
    variables = site.inventory.parent / "host_vars" / "node0.yml"
    variables.parent.mkdir()
    value = textwrap.indent(vaulted(password_file, "hf_fromTheVault"), "    ").strip()
    variables.write_text(f"orch_secrets:\n  HF_TOKEN: {value}\n")
    reader = replace(site, variables={"ANSIBLE_VAULT_PASSWORD_FILE": str(password_file)})
    reader.orch(command="sync")
    secret = json.loads(on(site, "node0", "cat", f"{ROOT}/secrets.json"))
    assert secret == {"HF_TOKEN": "hf_fromTheVault"}
    kept = [path for path in (site.folder / "state").rglob("*") if path.is_file()]
    assert not [path for path in kept if b"hf_fromTheVault" in path.read_bytes()]
    variables.unlink()
    assert drift(site.orch(command="sync"))["node0"] == {"secrets.json"}
    for node in ("node0", "node1"):
        assert "secrets.json" not in on(site, node, "ls", ROOT)
    assert drift(site.orch(command="sync")) == {"node0": set(), "node1": set()}


@pytest.fixture
def ada(site: Site, tmp_path: Path) -> Site:
    """Somebody whose sudo wants a password, on two nodes, one of which misnames the other."""
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
    hers = replace(site, folder=tmp_path)
    hers.describe("node0", "node1", ansible_user="ada")
    return hers


def test_sudo_with_a_password_and_names_that_are_loopbacks(
    ada: Site, site: Site, password_file: Path, tmp_path: Path
) -> None:
    """Names are written with root's rights: without them the pair that fails is named."""
    refused = nodes_of(ada.orch("--check", code=1))
    assert "on node0 the name node1 resolves to 127.0.1.1" in refused["node0"]["problem"]
    assert "not changed" in refused["node1"]["problem"]

    (tmp_path / "wrong").write_text("close sesame\n")
    wrong = {"ANSIBLE_BECOME_PASSWORD_FILE": str(tmp_path / "wrong")}
    report = nodes_of(replace(ada, variables=wrong).orch("--check", code=1))
    assert "the sudo password is wrong" in report["node0"]["problem"]

    hidden = ada.inventory.parent / "group_vars" / "all.yml"
    vault(hidden, password_file, f"ansible_become_password: {PASSWORD}\n")
    assert "ANSIBLE_VAULT_PASSWORD_FILE" in ada.orch("--check", code=2)["stderr"]
    right = {"ANSIBLE_VAULT_PASSWORD_FILE": str(password_file)}
    report = replace(ada, variables=right).orch("--check", code=1)
    assert [node["failed"] for node in report["nodes"]] == [0, 0]
    assert "/etc/hosts" in drift(report)["node0"]
    site.cluster.exec("node0", ("sed", "-i", "/^127.0.1.1 node1$/d", "/etc/hosts"))


def test_an_inventory_that_is_a_program(site: Site) -> None:
    program = replace(site, name="inventory.py")
    described = site.content("node0", "node1")
    listing = {
        "all": {"hosts": list(described["hosts"]), "vars": described["vars"]},
        "_meta": {"hostvars": described["hosts"]},
    }
    program.inventory.write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(listing))})\n")
    program.inventory.chmod(0o755)
    report = program.orch("--check", code=1)  # another inventory has another key: that is drift
    assert {name: node["failed"] for name, node in nodes_of(report).items()} == {"node0": 0, "node1": 0}
    assert "train/node.py" not in drift(report)["node0"]
