"""A real Slurm in containers: a login node with the controller, and nodes that share a folder."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.images import run

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
NODES = ("n1", "n2", "n3")
LOGIN = "login"
USER = "alice"


class Site:
    """`home`: of the user, on this machine and in all containers. `prefix` tells two apart."""

    def __init__(self, folder: Path, image: str) -> None:
        self.folder = folder
        self.image = image
        self.prefix = f"orch-slurm-{os.getpid()}"
        self.network = self.prefix
        self.home = folder / "home"
        self.etc = folder / "etc"

    def container(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def up(self) -> None:
        self.etc.mkdir()
        self.home.mkdir(mode=0o755)
        os.chown(self.home, 1500, 1500)
        shutil.copy(HERE / "slurm.conf", self.etc)
        # Before 23.11 there was no way to say that there are none, and no need.
        old = ":bookworm" in self.image
        (self.etc / "cgroup.conf").write_text("" if old else "CgroupPlugin=disabled\n")
        (self.etc / "munge.key").write_bytes(secrets.token_bytes(128))
        run("docker", "network", "create", self.network)
        for host in (LOGIN, *NODES):
            self.start(host)
        self.await_idle()

    def start(self, host: str) -> None:
        python = Path(sys.base_prefix)
        opened = [str(one) for one in (*python.parents, *CHECKOUT.parents) if len(one.parts) > 1]
        shared = (f"{self.home}:/home/{USER}", f"{self.etc}:/etc/slurm:ro")
        read = (f"{path}:{path}:ro" for path in (CHECKOUT, python))
        mounts = (word for one in (*shared, *read) for word in ("--volume", one))
        role = "login" if host == LOGIN else "node"
        run(
            "docker", "run", "--detach", "--init", "--hostname", host,
            "--name", self.container(host),
            "--network", self.network, "--network-alias", host, "--shm-size", "256m",
            "--env", f"OPEN_FOLDERS={' '.join(dict.fromkeys(opened))}", *mounts,
            self.image, str(HERE / "boot"), role,
        )  # fmt: skip

    def down(self) -> None:
        for host in (LOGIN, *NODES):
            subprocess.run(
                ["docker", "rm", "--force", "--volumes", self.container(host)], capture_output=True
            )
        subprocess.run(["docker", "network", "rm", self.network], capture_output=True)

    def command(self, host: str, *argv: str, user: str = USER, cwd: str = "") -> tuple[str, ...]:
        where = ("--workdir", cwd or f"/home/{USER}")
        variables = ("--env", f"HOME=/home/{USER}", "--env", "NO_COLOR=1", "--env", "COLUMNS=200")
        return ("docker", "exec", "--user", user, *where, *variables, self.container(host), *argv)

    def on(
        self, host: str, *argv: str, user: str = USER, seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(host, *argv, user=user), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=seconds,
        )  # fmt: skip

    def said(self, *argv: str, user: str = USER) -> str:
        """What a program on the login node prints; it must not fail."""
        done = self.on(LOGIN, *argv, user=user)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def orch(self, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        return self.on(LOGIN, *orch_words(*arguments), seconds=seconds)

    def await_idle(self) -> None:
        """Until all nodes can take a job."""

        def idle() -> bool:
            words = self.on(LOGIN, "sinfo", "--noheader", "--Node", "--format=%N %T").stdout
            return {line.split()[1] for line in words.splitlines() if line} == {"idle"}

        until(idle, "that all nodes are idle")


def until(true: Callable[[], object], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what}: not after {seconds:.0f} s"
        time.sleep(0.1)


def orch_words(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "orchestrator.cli.main", *arguments)


@contextmanager
def slurm_site(folder: Path, image: str) -> Iterator[Site]:
    site = Site(folder, image)
    try:
        site.up()
        yield site
    finally:
        site.down()
