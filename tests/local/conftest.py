from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.grounds import one, two
from tests.ports import free_port

__all__ = ["one", "two"]


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[str]:
    """A server of its own with keys of its own; -> a configuration for `far` and `node0`."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        if "CI" in os.environ:
            pytest.fail("no sshd: apt-get install openssh-server")
        pytest.skip("no sshd on this machine: apt-get install openssh-server")
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True)
    port = free_port()
    shutil.copy(folder / "user.pub", folder / "authorized")
    key = (folder / "host.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nPidFile none\n"
        "PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n"
    )
    config = folder / "config"
    config.write_text(
        f"Host far node0\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {folder}/user\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield str(config)
    server.terminate()
    server.wait()
