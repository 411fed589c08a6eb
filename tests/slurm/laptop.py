"""A machine outside of the cluster that reaches the login node by SSH and shares no files with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.files import cache_home
from tests.conftest import ORCH
from tests.slurm.site import LOGIN, MODULES, USER, USER_ID, Site
from tests.support.images import run_program

NAME = "cluster"  # of the login node in its ~/.ssh/config


class Laptop:
    """A machine on which orch is installed, and which is a process of the tests with another home.

    Args:
        site: the Slurm that it uses.
        home: of its user, where orch starts.
    """

    def __init__(self, site: Site, home: Path) -> None:
        self.site = site
        self.home = home
        ssh = home / ".ssh"
        ssh.mkdir(mode=0o700, parents=True)
        run_program("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / "id_ed25519"))
        self.authorize((ssh / "id_ed25519.pub").read_text())
        self.known_hosts = ssh / "known_hosts"
        key = site.stdout_of("cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
        self.known_hosts.write_text(f"{self.address} {' '.join(key)}\n")
        (ssh / "config").write_text(
            f"Host {NAME}\n HostName {self.address}\n User {USER}\n"
            f" IdentityFile {ssh / 'id_ed25519'}\n IdentitiesOnly yes\n"
            f" UserKnownHostsFile {self.known_hosts}\n"
        )

    @property
    def address(self) -> str:
        template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return run_program("docker", "inspect", "--format", template, self.site.container(LOGIN)).strip()

    def authorize(self, key: str) -> None:
        folder = self.site.home / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "authorized_keys").write_text(key)
        for path in (folder, folder / "authorized_keys"):
            path.chmod(0o700 if path.is_dir() else 0o600)
            os.chown(path, USER_ID, USER_ID)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "HOME": str(self.home),
            "NO_COLOR": "1",
            "COLUMNS": "200",
            **MODULES,
            "XDG_CACHE_HOME": str(cache_home().parent),
            # OpenSSH reads the home of its user from /etc/passwd.
            "ANSIBLE_SSH_COMMON_ARGS": f"-o UserKnownHostsFile={self.known_hosts} "
            f"-o IdentityFile={self.home}/.ssh/id_ed25519 -o HostName={self.address} "
            f"-o User={USER} -o IdentitiesOnly=yes",
        }
        return subprocess.Popen(
            [*ORCH, *arguments],
            cwd=self.home,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def orch(self, *arguments: str, code: int = 0, seconds: float = 600) -> str:
        """Run orch, check its exit code, and return its output, or its messages if it has to fail."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=seconds)
        assert process.returncode == code, f"{arguments}: {out}{err}"
        return err if code else out
