"""Two hosts on one machine: namespaces with a name, an interface, files and an sshd of their own.

They stand for what `orch provision` makes of real nodes, without the installing: the folder of orch
is there, with train/, the stack (this environment) and an ssh configuration. Needs root; the nodes
of tests/cluster are the real thing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from orchestrator.paths import TRAIN
from orchestrator.state import State
from tests.support.waiting import wait_until

# Between the hosts, and from each of them to this machine: a bridge would not do, because the
# engine that may run here has the kernel drop what crosses one.
NETWORK, WIRE_NETWORK = "10.213.{}", "10.214.{}"
COUNT = 2
LAB_NUMBERS = count()  # of this process: more than one may be there at a time
# What each host runs: private mounts and processes, then sshd until it is ended.
START_HOST = """
set -eu
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/root {root}
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
exec /usr/sbin/sshd -D -e -f {folder}/sshd_config
"""
SSHD_CONFIG = """Port 22
HostKey {base}/host
UsePAM no
AuthorizedKeysFile {base}/user.pub
StrictModes no
PidFile none
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""
SSH_CONFIG = """Host {name} {address}
    HostName {address}
    User root
    IdentityFile {base}/user
    UserKnownHostsFile {base}/known_hosts
    StrictHostKeyChecking yes
    BatchMode yes
    LogLevel ERROR
"""


@dataclass
class Host:
    name: str
    address: str
    ssh_address: str
    folder: Path
    process: subprocess.Popen[bytes]


class Hosts:
    """Two hosts, each on a CPU of its own where there are enough."""

    def __init__(self, base: Path) -> None:
        self.base = base
        number = next(LAB_NUMBERS)
        self.mark = f"o{os.getpid() % 10000}{number}"
        index = (os.getpid() + 67 * number) % 200 + 20
        self.network, self.wires = NETWORK.format(index), WIRE_NETWORK.format(index)
        self.root = base / "orch"
        self.root.mkdir(parents=True)
        self.keys()
        self.hosts: list[Host] = []
        self.names = {f"node{index}": f"{self.network}.{index + 1}" for index in range(COUNT)}
        run_program("ip", "link", "add", f"{self.mark}n0", "type", "veth", "peer", f"{self.mark}n1")
        self.known()
        for index, (name, address) in enumerate(self.names.items()):
            self.hosts.append(self.start(index, name, address))
        for host in self.hosts:
            wait_until(lambda at=host.ssh_address: accepts_connections(at), f"an sshd of {host.name}")

    def keys(self) -> None:
        for name in ("host", "user"):
            path = str(self.base / name)
            run_program("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path)

    def known(self) -> None:
        key = (self.base / "host.pub").read_text()
        names = [word for pair in self.names.items() for word in pair]
        names += [self.wire_of(index) for index in range(COUNT)]
        (self.base / "known_hosts").write_text(f"{','.join(names)} {key}")

    def start(self, index: int, name: str, address: str) -> Host:
        folder = self.base / name
        home = folder / "root"
        (home / "ssh").mkdir(parents=True)
        (home / "stacks").mkdir()
        shutil.copytree(TRAIN, home / "train", ignore=shutil.ignore_patterns("__pycache__"))
        (home / "stacks" / "current").symlink_to(Path(sys.prefix))
        blocks = (SSH_CONFIG.format(name=n, address=a, base=self.base) for n, a in self.names.items())
        (home / "ssh" / "config").write_text("".join(blocks))
        lines = [f"{address} {name}\n" for name, address in self.names.items()]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        (folder / "sshd_config").write_text(SSHD_CONFIG.format(address=address, base=self.base))
        Path("/run/sshd").mkdir(exist_ok=True)
        text = START_HOST.format(name=name, folder=folder, root=self.root)
        cpu = sorted(os.sched_getaffinity(0))[index % len(os.sched_getaffinity(0))]
        command = [
            *("taskset", "-c", str(cpu), "unshare", "--net", "--uts", "--mount", "--pid"),
            *("--fork", "--mount-proc", "--kill-child", "sh", "-c", f"read wired; {text}"),
        ]
        with (folder / "sshd.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)
        self.wire(index, process.pid, address)
        assert process.stdin is not None
        process.stdin.write(b"wired\n")
        process.stdin.close()
        return Host(name, address, self.wire_of(index), folder, process)

    def wire(self, index: int, pid: int, address: str) -> None:
        inside = f"{self.mark}n{index}"
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{pid}/ns/net") != own, "a network namespace")
        outer = f"{self.mark}w{index}"
        run_program("ip", "link", "add", outer, "type", "veth", "peer", f"{outer}i")
        last = self.wire_of(index).rpartition(".")[2]
        run_program("ip", "address", "add", f"{self.wires}.{int(last) + 1}/30", "dev", outer)
        run_program("ip", "link", "set", outer, "up")
        enter = ("nsenter", "--target", str(pid), "--net", "ip")
        for outside, name, own in (
            (inside, "eth0", f"{address}/24"),
            (f"{outer}i", "wire0", f"{self.wire_of(index)}/30"),
        ):
            run_program("ip", "link", "set", outside, "netns", str(pid))
            run_program(*enter, "link", "set", outside, "name", name)
            run_program(*enter, "address", "add", own, "dev", name)
            run_program(*enter, "link", "set", name, "up")

    def wire_of(self, index: int) -> str:
        return f"{self.wires}.{index * 4 + 1}"

    def write_inventory(self, environment: dict[str, str]) -> Path:
        """An inventory of the hosts, and the records of a provision."""
        path = self.base / "lab.yml"
        lines = [f"    {name}: {{ansible_host: {at}}}\n" for name, at in self.names.items()]
        path.write_text("all:\n  hosts:\n" + "".join(lines))
        home = Path(environment["XDG_STATE_HOME"]) / "orch/clusters" / State.of(path).folder.name
        (home / "nodes").mkdir(parents=True, exist_ok=True)
        for host in self.hosts:
            (home / "nodes" / f"{host.name}.json").write_text(json.dumps(self.record(host)))
        return path

    def record(self, host: Host) -> dict[str, object]:
        prefix = f"{self.root}/stacks/current"
        asked = [f"{prefix}/bin/python", f"{self.root}/train/lib/orch_node/standalone/facts.py", prefix]
        known = f"UserKnownHostsFile={self.base}/known_hosts"
        done = subprocess.run([*self.ssh_command(host), *asked], capture_output=True, check=True, text=True)
        return {
            **json.loads(done.stdout),
            "root": str(self.root),
            "address": host.address,
            "route": "eth0",
            "connection": {
                "host": host.ssh_address,
                "user": "root",
                "key": str(self.base / "user"),
                "arguments": f"-o {known}",
            },
        }

    def ssh_command(self, host: Host) -> list[str]:
        """The ssh command that runs what follows it on the host."""
        known = f"UserKnownHostsFile={self.base}/known_hosts"
        return ["ssh", "-i", str(self.base / "user"), "-o", known, host.ssh_address]

    def disconnect(self, host: Host) -> None:
        """Pull its cables: what it sends and what is sent to it is lost."""
        enter = ("nsenter", "--target", str(host.process.pid), "--net", "ip", "link", "set")
        for name in ("eth0", "wire0"):
            run_program(*enter, name, "down")

    def stop(self) -> None:
        for index, host in enumerate(self.hosts):
            # The kernel takes its time over a namespace: whoever comes next wants these names.
            run_program("ip", "link", "delete", f"{self.mark}w{index}")
            host.process.send_signal(signal.SIGKILL)  # --kill-child takes the rest along
            host.process.wait()


def run_program(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def accepts_connections(address: str) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, 22)) == 0


def missing_requirements() -> str:
    """Why there can be no hosts here, or nothing."""
    if os.getuid() != 0:
        return "needs root for namespaces"
    missing = [name for name in ("ip", "unshare", "nsenter", "taskset") if not shutil.which(name)]
    if not Path("/usr/sbin/sshd").exists():
        missing.append("sshd")
    return f"needs {', '.join(missing)}" if missing else ""
