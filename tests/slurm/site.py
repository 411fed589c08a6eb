"""A real Slurm in containers: a login node with the controller, and nodes that share a folder."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.images import run_program
from tests.support.waiting import wait_until

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
NODES = ("n1", "n2", "n3")
LOGIN = "login"
USER = "alice"


SLURM_UID = 64030  # of Debian's slurm
# What large sites have: cgroups that hold jobs to their memory, and accounting with limits.
STRICT = {
    "proctrack/linuxproc": "proctrack/cgroup",
    "task/none": "task/cgroup",
    "SelectTypeParameters=CR_Core": "SelectTypeParameters=CR_Core_Memory",
    "jobacct_gather/none": "jobacct_gather/cgroup\nJobAcctGatherFrequency=task=1",
    "accounting_storage/none": "accounting_storage/slurmdbd\nAccountingStorageEnforce=associations,limits",
}
STRICT_CGROUP = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainCores=yes\n"
# Settings of other sites: node names that differ from the host names, memory limits without cgroups, and jobs
# that Slurm forgets soon after they end.
UNUSUAL = {
    "NodeName=n[1-3] ": "NodeName=beta[1-3] NodeHostname=n[1-3] NodeAddr=n[1-3] ",
    "Nodes=n[1-3]": "Nodes=beta[1-3]",
    "SelectTypeParameters=CR_Core": "SelectTypeParameters=CR_Core_Memory",
    "jobacct_gather/none": "jobacct_gather/linux\nJobAcctGatherParams=OverMemoryKill\nJobAcctGatherFrequency=task=1",
    "MinJobAge=300": "MinJobAge=2",
}
SLURMDBD = """AuthType=auth/munge
DbdHost=login
SlurmUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurm/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageUser=slurm
"""


class Site:
    """`home`: of the user, on this machine and in all containers. `prefix` tells two apart.
    `strict`: with cgroups and accounting. `unusual`: with the settings of UNUSUAL."""

    def __init__(self, folder: Path, image: str, *, strict: bool = False, unusual: bool = False) -> None:
        self.folder = folder
        self.image = image
        self.strict = strict
        self.unusual = unusual
        self.prefix = f"orch-slurm-{os.getpid()}{'-strict' * strict}{'-unusual' * unusual}"
        self.network = self.prefix
        self.small = f"{self.prefix}-small"  # a file system of 1 MB, which all hosts see
        self.home = folder / "home"
        self.etc = folder / "etc"

    @property
    def newer(self) -> bool:
        """Whether it is 24.11 of trixie, with Apptainer, and not 22.05 of bookworm."""
        return ":trixie" in self.image

    def container(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def up(self) -> None:
        self.etc.mkdir()
        self.home.mkdir(mode=0o755)
        os.chown(self.home, 1500, 1500)
        self.write_settings()
        (self.etc / "munge.key").write_bytes(secrets.token_bytes(128))
        run_program("docker", "network", "create", self.network)
        small = ("type=tmpfs", "device=tmpfs", "o=size=1m,uid=1500")
        words = (word for option in small for word in ("--opt", option))
        run_program("docker", "volume", "create", "--driver", "local", *words, self.small)
        for host in (LOGIN, *NODES):
            self.start(host)
        self.await_idle()

    def write_settings(self) -> None:
        text = (HERE / "slurm.conf").read_text()
        # Before 23.11 there was no way to say that there are none, and no need.
        cgroup = "CgroupPlugin=disabled\n" if self.newer else ""
        cgroup = STRICT_CGROUP if self.strict else cgroup
        for usual, setting in {**(STRICT if self.strict else {}), **(UNUSUAL if self.unusual else {})}.items():
            assert usual in text
            text = text.replace(usual, setting)
        files = {"slurm.conf": text, "cgroup.conf": cgroup, "slurmdbd.conf": SLURMDBD}
        for name, content in files.items():
            (self.etc / name).write_text(content)
        (self.etc / "slurmdbd.conf").chmod(0o600)
        os.chown(self.etc / "slurmdbd.conf", SLURM_UID, SLURM_UID)

    def start(self, host: str) -> None:
        python = Path(sys.base_prefix)
        opened = [str(one) for one in (*python.parents, *CHECKOUT.parents) if len(one.parts) > 1]
        shared = (f"{self.home}:/home/{USER}", f"{self.etc}:/etc/slurm:ro")
        read = (f"{path}:{path}:ro" for path in (CHECKOUT, python))
        mounts = (word for one in (*shared, *read) for word in ("--volume", one))
        role = "login" if host == LOGIN else "node"
        run_program(
            "docker",
            "run",
            "--detach",
            "--init",
            "--hostname",
            host,
            "--name",
            self.container(host),
            "--network",
            self.network,
            "--network-alias",
            host,
            "--shm-size",
            "256m",
            # Apptainer makes a namespace of its user, and mounts images by FUSE.
            *(("--security-opt", "seccomp=unconfined", "--device", "/dev/fuse") * self.newer),
            *(("--cap-add", "SYS_ADMIN", "--env", "STRICT=yes") * self.strict),
            # To measure the memory of the user's processes.
            *(("--cap-add", "SYS_PTRACE") * (self.strict or self.unusual)),
            "--volume",
            f"{self.small}:/small",
            "--env",
            f"OPEN_FOLDERS={' '.join(dict.fromkeys(opened))}",
            *mounts,
            self.image,
            str(HERE / "boot"),
            role,
        )

    def down(self) -> None:
        for host in (LOGIN, *NODES):
            subprocess.run(["docker", "rm", "--force", "--volumes", self.container(host)], capture_output=True)
        for kind, name in (("network", self.network), ("volume", self.small)):
            subprocess.run(["docker", kind, "rm", name], capture_output=True)

    def command(self, host: str, *argv: str, user: str = USER, cwd: str = "") -> tuple[str, ...]:
        where = ("--workdir", cwd or f"/home/{USER}")
        variables = ("--env", f"HOME=/home/{USER}", "--env", "NO_COLOR=1", "--env", "COLUMNS=200")
        return ("docker", "exec", "--user", user, *where, *variables, self.container(host), *argv)

    def on(self, host: str, *argv: str, user: str = USER, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(host, *argv, user=user),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

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

        wait_until(idle, "that all nodes are idle")


def orch_words(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "orchestrator.cli.main", *arguments)


@contextmanager
def slurm_site(folder: Path, image: str, *, strict: bool = False, unusual: bool = False) -> Iterator[Site]:
    site = Site(folder, image, strict=strict, unusual=unusual)
    try:
        site.up()
        yield site
    finally:
        site.down()
