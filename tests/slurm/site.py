"""A real Slurm in containers: a login node with the controller, and nodes that share a folder."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

from tests.conftest import ORCH
from tests.support.images import run_program
from tests.support.waiting import wait_until

FOLDER = Path(__file__).parent
CHECKOUT = FOLDER.parent.parent
ENVIRONMENT = Path(sys.prefix).resolve()  # .venv may be a link to the one of another checkout
IS_SHARED = not ENVIRONMENT.is_relative_to(CHECKOUT)
MOUNTED = (CHECKOUT, Path(sys.base_prefix), *((ENVIRONMENT,) if IS_SHARED else ()))
# A shared environment has the orch of the other checkout.
MODULES = {"PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'train/lib'}"} if IS_SHARED else {}
NODES = ("n1", "n2", "n3")
LOGIN = "login"
USER = "alice"
USER_ID = 1500
SLURM_UID = 64030  # of Debian's slurm
# Replacements in slurm.conf as on large sites: node names that differ from host names, cgroups that limit the memory of
# jobs, and accounting.
STRICT = {
    "NodeName=n[1-3] ": "NodeName=beta[1-3] NodeHostname=n[1-3] NodeAddr=n[1-3] ",
    "Nodes=n[1-3]": "Nodes=beta[1-3]",
    "proctrack/linuxproc": "proctrack/cgroup",
    "task/none": "task/cgroup",
    "SelectTypeParameters=CR_Core": "SelectTypeParameters=CR_Core_Memory",
    "jobacct_gather/none": "jobacct_gather/cgroup\nJobAcctGatherFrequency=task=1",
    "accounting_storage/none": "accounting_storage/slurmdbd\nAccountingStorageEnforce=associations,limits",
}
STRICT_CGROUP = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainCores=yes\n"
SLURMDBD = """AuthType=auth/munge
DbdHost=login
SlurmUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurm/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageUser=slurm
"""


class Site:
    """A Slurm whose hosts are containers.

    Args:
        folder: where its settings and the user's home are, which all containers share.
        image: name of the image that tests/slurm/image has built.
        strict: use cgroups and accounting, with the replacements STRICT.
    """

    def __init__(self, folder: Path, image: str, *, strict: bool = False) -> None:
        self.folder = folder
        self.image = image
        self.strict = strict
        self.prefix = f"orch-slurm-{secrets.token_hex(4)}{'-strict' * strict}"
        self.home = folder / "home"
        self.etc = folder / "etc"

    @property
    def is_trixie(self) -> bool:
        """Return whether this is Slurm 24.11 of trixie, with Apptainer, instead of 22.05 of bookworm."""
        return ":trixie" in self.image

    def container(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def start(self) -> None:
        self.etc.mkdir()
        self.home.mkdir(mode=0o755)
        os.chown(self.home, USER_ID, USER_ID)
        self.write_settings()
        (self.etc / "munge.key").write_bytes(secrets.token_bytes(128))
        run_program("docker", "network", "create", self.prefix)
        for host in (LOGIN, *NODES):
            self.start_host(host)
        self.wait_for_idle_nodes()

    def write_settings(self) -> None:
        text = (FOLDER / "slurm.conf").read_text()
        # Slurm 22.05 needs no setting to run without cgroups, and does not know this one.
        cgroup = "CgroupPlugin=disabled\n" if self.is_trixie else ""
        cgroup = STRICT_CGROUP if self.strict else cgroup
        for default, setting in (STRICT if self.strict else {}).items():
            assert default in text
            text = text.replace(default, setting)
        files = {"slurm.conf": text, "cgroup.conf": cgroup, "slurmdbd.conf": SLURMDBD}
        for name, content in files.items():
            (self.etc / name).write_text(content)
        (self.etc / "slurmdbd.conf").chmod(0o600)
        os.chown(self.etc / "slurmdbd.conf", SLURM_UID, SLURM_UID)

    def start_host(self, host: str) -> None:
        parents = [str(path) for mounted in MOUNTED for path in mounted.parents if len(path.parts) > 1]
        shared = (f"{self.home}:/home/{USER}", f"{self.etc}:/etc/slurm:ro")
        read_only = (f"{path}:{path}:ro" for path in MOUNTED)
        volumes = (*shared, *read_only)
        role = "login" if host == LOGIN else "node"
        run_program(
            *("docker", "run", "--detach", "--init", "--hostname", host, "--name", self.container(host)),
            *("--network", self.prefix, "--network-alias", host, "--shm-size", "256m"),
            # Apptainer creates a user namespace, and mounts images with FUSE.
            *(("--security-opt", "seccomp=unconfined", "--device", "/dev/fuse") * self.is_trixie),
            # Slurm measures the memory of the user's processes.
            *(("--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE", "--env", "STRICT=yes") * self.strict),
            *(f"--volume={volume}" for volume in volumes),
            *("--env", f"OPEN_FOLDERS={' '.join(dict.fromkeys(parents))}"),
            *(self.image, str(FOLDER / "boot"), role),
        )

    def stop(self) -> None:
        for host in (LOGIN, *NODES):
            subprocess.run(["docker", "rm", "--force", "--volumes", self.container(host)], capture_output=True)
        subprocess.run(["docker", "network", "rm", self.prefix], capture_output=True)

    def exec_command(self, host: str, *argv: str, user: str = USER, cwd: str = "") -> tuple[str, ...]:
        workdir = ("--workdir", cwd or f"/home/{USER}")
        variables = {"HOME": f"/home/{USER}", "NO_COLOR": "1", "COLUMNS": "200", **MODULES}
        options = (f"--env={name}={value}" for name, value in variables.items())
        return ("docker", "exec", "--user", user, *workdir, *options, self.container(host), *argv)

    def run_on(self, host: str, *argv: str, user: str = USER, seconds: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a program on a host, which may fail."""
        return subprocess.run(
            self.exec_command(host, *argv, user=user),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def stdout_of(self, *argv: str, user: str = USER) -> str:
        """Return what a program on the login node prints; it must not fail."""
        done = self.run_on(LOGIN, *argv, user=user)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def orch(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run orch on the login node, check its exit code, and return its output."""
        done = self.run_on(LOGIN, *ORCH, *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def wait_for_idle_nodes(self) -> None:
        """Wait until all nodes can take a job."""

        def are_idle() -> bool:
            output = self.run_on(LOGIN, "sinfo", "--noheader", "--Node", "--format=%N %T").stdout
            return {line.split()[1] for line in output.splitlines() if line} == {"idle"}

        wait_until(are_idle, "that all nodes are idle")

    def wait_for_no_jobs(self) -> None:
        """Wait until no job is in the queue; a job that ends is there until its processes have ended."""

        def has_no_jobs() -> bool:
            done = self.run_on(LOGIN, "squeue", "--noheader", "--all")
            return done.returncode == 0 and not done.stdout

        wait_until(has_no_jobs, "that no job is in the queue")

    def wait_until_ended(self, pattern: str, *hosts: str) -> None:
        """Wait until the user has no process on the hosts whose command line matches the pattern."""
        for host in hosts:
            wait_until(
                lambda host=host: self.run_on(host, "pgrep", "-u", USER, "-f", pattern).stdout == "",  # type: ignore[misc]
                f"that {pattern} has ended on {host}",
            )

    def reset(self) -> None:
        """Remove what a test has left: jobs, orch processes, nodes that do not run."""
        for host in NODES:
            subprocess.run(["docker", "start", self.container(host)], capture_output=True)
        self.run_on(LOGIN, "pkill", "-KILL", "-f", f"^{' '.join(ORCH)} train")
        self.run_on(LOGIN, "scancel", "--user", USER)
        names = self.stdout_of("sinfo", "--noheader", "--format=%N")
        self.run_on(LOGIN, "scontrol", "update", f"nodename={names}", "state=resume", user="root")
        self.wait_for_idle_nodes()
