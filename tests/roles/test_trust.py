"""The role trust authorizes the cluster's key for sshd, which refuses files that others may write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.roles.modules import run_play
from tests.support.files import write_files


@pytest.mark.parametrize("existing", [False, True])
def test_only_the_user_may_write_the_folder_of_authorized_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    """Run the role with the umask of Red Hat, which lets the group write, with and without a folder ~/.ssh."""
    write_files(tmp_path / "trust", {"id_ed25519.pub": "ssh-ed25519 AAAA orch cluster lab\n"})
    ssh = tmp_path / "home/.ssh"
    (ssh if existing else ssh.parent).mkdir(mode=0o700, parents=True)
    monkeypatch.setenv("HOME", str(ssh.parent))
    variables = {"orch_root": str(tmp_path / "orch"), "orch_trust": str(tmp_path / "trust"), "orch_cluster": "lab"}
    umask = os.umask(0o002)
    try:
        run_play(tmp_path, {"roles": ["trust"]}, **variables)
    finally:
        os.umask(umask)
    assert ssh.stat().st_mode & 0o7777 == (0o700 if existing else 0o755)
    assert (ssh / "authorized_keys").read_text() == "restrict ssh-ed25519 AAAA orch cluster lab\n"
