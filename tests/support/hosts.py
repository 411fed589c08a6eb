"""Run hosts on this machine: namespaces with a hostname, a network interface, files and an sshd each.

They look like nodes after `orch provision`: they have orch's folder with train/, compiled, the stack (this environment)
and an ssh configuration. Needs root. The tests in tests/cluster use nodes that orch has provisioned.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from orch_node.reach import StartFilter, shell_command

from orchestrator.files import TRAIN, State
from tests.support.files import write_files
from tests.support.waiting import wait_until

# Networks between the hosts, and from each host to this machine. Bridges are only in node0, if there are more than two
# hosts, because Docker makes the kernel drop packets on those of this machine.
NETWORK, WIRE_NETWORK = "10.213.{}", "10.214.{}"
LAB_NUMBERS = count()  # to tell several pairs of hosts of this process apart
# The program of a host: it mounts the host's files, then runs sshd.
START_HOST = """
set -eu
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/passwd /etc/passwd
mount --bind {folder}/root {root}
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
exec /usr/sbin/sshd -D -e -f {folder}/sshd_config
"""
SSHD_CONFIG = """Port 22
HostKey {base}/host
UsePAM no
AuthorizedKeysFile {base}/user.pub .ssh/authorized_keys
StrictModes no
PidFile none
PermitRootLogin prohibit-password
Subsystem sftp {sftp_server}
"""
# Programs that serve files in the login shell of the user, by system; internal-sftp starts no shell.
SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server")
SSH_CONFIG = """Host {name} {address}
    HostName {address}
    User root
    IdentityFile {base}/user
    UserKnownHostsFile {base}/known_hosts
    StrictHostKeyChecking yes
    BatchMode yes
    LogLevel ERROR
"""


@dataclass(frozen=True)
class LoginShell:
    """The login shell of a host's user, and the files of the home folder."""

    program: str = "/bin/bash"
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Host:
    """A running host."""

    name: str
    address: str  # in the network of the hosts
    ssh_address: str  # that this machine connects to
    folder: Path  # its files
    process: subprocess.Popen[bytes]


def free_network() -> int:
    """Return a number for NETWORK and WIRE_NETWORK that is free, and not that of another process at the same time."""
    addresses = subprocess.run(["ip", "-4", "-o", "address"], capture_output=True, text=True, check=True).stdout
    free = [index for index in range(20, 220) if f" {WIRE_NETWORK.format(index)}." not in addresses]
    return free[os.getpid() % len(free)]


class Hosts:
    """Hosts, each on one CPU; on different CPUs if this process may use as many."""

    def __init__(
        self, base: Path, count: int = 2, variables: Mapping[str, str] | None = None, shells: Sequence[LoginShell] = ()
    ) -> None:
        """Start hosts.

        Args:
            base: the folder of their files.
            count: how many.
            variables: the environment of programs that ssh starts there; without blanks.
            shells: of the first hosts; the others have the shell and the home folder of this machine.
        """
        self.base = base
        self.variables = variables or {}
        self.shells = shells
        number = next(LAB_NUMBERS)
        self.interface_prefix = f"o{os.getpid() % 10000:04}{number}"
        index = free_network()
        self.network, self.wire_network = NETWORK.format(index), WIRE_NETWORK.format(index)
        self.root = base / "orch"
        self.root.mkdir(parents=True)
        for name in ("host", "user"):
            run_program("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(base / name))
        allow_neighbors(count)
        compileall.compile_dir(TRAIN, quiet=1)
        self.hosts: list[Host] = []
        self.addresses = {f"node{index}": f"{self.network}.{index + 1}" for index in range(count)}
        key = (base / "host.pub").read_text()
        ssh_addresses = [self.wire_address(index) for index in range(count)]
        names = ",".join([*self.addresses, *self.addresses.values(), *ssh_addresses])
        (base / "known_hosts").write_text(f"{names} {key}")
        for index, (name, address) in enumerate(self.addresses.items()):
            self.hosts.append(self.start(index, name, address))
        for host in self.hosts:
            wait_until(lambda address=host.ssh_address: accepts_connections(address), f"sshd of {host.name}")

    def start(self, index: int, name: str, address: str) -> Host:
        """Start a host, and connect it to the networks."""
        folder = self.base / name
        home = folder / "root"
        (home / "ssh").mkdir(parents=True)
        (home / "stacks").mkdir()
        ignored = shutil.ignore_patterns("*.pyc.*")  # other tests are compiling, too
        shutil.copytree(TRAIN, home / "train", ignore=ignored)
        (home / "stacks" / "current").symlink_to(Path(sys.prefix))
        blocks = [SSH_CONFIG.format(name=n, address=a, base=self.base) for n, a in self.addresses.items()]
        (home / "ssh" / "config").write_text("".join(blocks))
        lines = [f"{address} {name}\n" for name, address in self.addresses.items()]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        assignments = " ".join(f"{name}={value}" for name, value in self.variables.items())
        environment = f"SetEnv {assignments}\n" if assignments else ""
        sshd_config = SSHD_CONFIG.format(base=self.base, sftp_server=self.write_user(index, folder))
        (folder / "sshd_config").write_text(sshd_config + environment)
        Path("/run/sshd").mkdir(exist_ok=True)
        script = START_HOST.format(name=name, folder=folder, root=self.root)
        cpu = sorted(os.sched_getaffinity(0))[index % len(os.sched_getaffinity(0))]
        command = [
            *("taskset", "-c", str(cpu), "unshare", "--net", "--uts", "--mount", "--pid"),
            *("--fork", "--mount-proc", "--kill-child", "sh", "-c", f"read connected; {script}"),
        ]
        with (folder / "sshd.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)
        self.connect(index, process.pid, address)
        process.stdin.write(b"connected\n")
        process.stdin.close()
        return Host(name, address, self.wire_address(index), folder, process)

    def write_user(self, index: int, folder: Path) -> str:
        """Write the files of a host's user, and return the program that serves files there."""
        passwd, sftp_server = Path("/etc/passwd").read_text(), "internal-sftp"
        if index < len(self.shells):
            shell, home = self.shells[index], folder / "home"
            home.mkdir()
            write_files(home, shell.files)
            passwd = re.sub(r"(?m)^(root:.*:)[^:]*:[^:]*$", rf"\g<1>{home}:{shell.program}", passwd)
            sftp_server = next(program for program in SFTP_SERVERS if Path(program).exists())
        (folder / "passwd").write_text(passwd)
        return sftp_server

    def connect(self, index: int, pid: int, address: str) -> None:
        """Connect a host by virtual cables to node0 and to this machine."""
        own_namespace = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{pid}/ns/net") != own_namespace, "a network namespace")
        wire = f"{self.interface_prefix}w{index}"
        run_program("ip", "link", "add", wire, "type", "veth", "peer", f"{wire}i")
        last_byte = self.wire_address(index).rpartition(".")[2]
        run_program("ip", "address", "add", f"{self.wire_network}.{int(last_byte) + 1}/30", "dev", wire)
        run_program("ip", "link", "set", wire, "up")
        move_interface(f"{wire}i", pid, "wire0", f"{self.wire_address(index)}/30")
        if index == 0:
            if len(self.addresses) > 2:
                run_program(*ip_in(pid), "link", "add", "eth0", "type", "bridge")
                run_program(*ip_in(pid), "address", "add", f"{address}/24", "dev", "eth0")
                run_program(*ip_in(pid), "link", "set", "eth0", "up")
            return
        node0, cable = self.hosts[0], f"{self.interface_prefix}n{index}"
        run_program("ip", "link", "add", cable, "type", "veth", "peer", f"{cable}p")
        move_interface(cable, pid, "eth0", f"{address}/24")
        if len(self.addresses) > 2:
            move_interface(f"{cable}p", node0.process.pid, f"port{index}")
            run_program(*ip_in(node0.process.pid), "link", "set", f"port{index}", "master", "eth0")
        else:
            move_interface(f"{cable}p", node0.process.pid, "eth0", f"{node0.address}/24")

    def wire_address(self, index: int) -> str:
        """Return the address of a host that this machine connects to."""
        return f"{self.wire_network}.{index * 4 + 1}"

    def write_inventory(self, environment: dict[str, str]) -> Path:
        """Write an inventory of the hosts, and the records that `orch provision` would write."""
        path = self.base / "lab.yml"
        variables = {
            host.name: {
                "ansible_host": host.ssh_address,
                "ansible_user": "root",
                "ansible_ssh_private_key_file": str(self.base / "user"),
                "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.base}/known_hosts",
                "ansible_python_interpreter": sys.executable,
                "orch_address": host.address,
            }
            for host in self.hosts
        }
        path.write_text(json.dumps({"all": {"hosts": variables}}))  # YAML, too
        home = Path(environment["XDG_STATE_HOME"]) / "orch/clusters" / State.of(path).folder.name
        (home / "nodes").mkdir(parents=True, exist_ok=True)
        for host in self.hosts:
            (home / "nodes" / f"{host.name}.json").write_text(json.dumps(self.record(host)))
        return path

    def record(self, host: Host) -> dict[str, object]:
        """Return the facts of a host, and how this machine connects to it."""
        prefix = f"{self.root}/stacks/current"
        probe = [f"{prefix}/bin/python", f"{self.root}/train/lib/orch_node/standalone/facts.py", prefix]
        done = subprocess.run([*self.ssh_command(host), shell_command(probe)], capture_output=True, check=True)
        return {
            **json.loads(StartFilter().output(done.stdout)),
            "root": str(self.root),
            "address": host.address,
            "route": "eth0",
            "connection": {
                "host": host.ssh_address,
                "user": "root",
                "key": str(self.base / "user"),
                "arguments": f"-o UserKnownHostsFile={self.base}/known_hosts",
            },
        }

    def ssh_command(self, host: Host) -> list[str]:
        """Return the ssh command that runs the arguments after it on the host."""
        known_hosts = f"UserKnownHostsFile={self.base}/known_hosts"
        return ["ssh", "-i", str(self.base / "user"), "-o", known_hosts, host.ssh_address]

    def sent_bytes(self) -> list[int]:
        """Return the bytes that have left this machine to each host."""
        counters = [f"/sys/class/net/{self.interface_prefix}w{index}/statistics" for index in range(len(self.hosts))]
        return [int(Path(counter, "tx_bytes").read_text()) for counter in counters]

    def disconnect(self, host: Host) -> None:
        """Disconnect a host from both networks, so that packets in both directions are lost."""
        for name in ("eth0", "wire0"):
            run_program(*ip_in(host.process.pid), "link", "set", name, "down")

    def stop(self) -> None:
        for index, host in enumerate(self.hosts):
            # The kernel deletes namespaces late, and the next hosts need these interface names.
            run_program("ip", "link", "delete", f"{self.interface_prefix}w{index}")
            host.process.send_signal(signal.SIGKILL)  # --kill-child kills its child processes as well
            host.process.wait()


def move_interface(interface: str, pid: int, name: str, address: str = "") -> None:
    """Move an interface of this machine into the network of a process, and give it a name and an address there."""
    run_program("ip", "link", "set", interface, "netns", str(pid))
    run_program(*ip_in(pid), "link", "set", interface, "name", name)
    if address:
        run_program(*ip_in(pid), "address", "add", address, "dev", name)
    run_program(*ip_in(pid), "link", "set", name, "up")


def ip_in(pid: int) -> tuple[str, ...]:
    """Return the program `ip` for the network of a process."""
    return ("nsenter", "--target", str(pid), "--net", "ip")


def run_program(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def allow_neighbors(hosts: int) -> None:
    """Raise the kernel's limit on neighbors, which all namespaces share; above it, hosts cannot reach each other.

    Each of these hosts may know all others in both networks. The default of 1,024 is too small for 32 hosts.
    """
    limit = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
    needed = 2 * hosts * hosts + 512
    with contextlib.suppress(OSError):  # not in the first namespace of the machine
        if int(limit.read_text()) < needed:
            limit.write_text(str(needed))


def accepts_connections(address: str, port: int = 22) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0


def missing_requirements() -> str:
    """Return what this machine lacks to run hosts; empty if it lacks nothing."""
    if os.getuid() != 0:
        return "needs root for namespaces"
    missing = [name for name in ("ip", "unshare", "nsenter", "taskset") if not shutil.which(name)]
    if not Path("/usr/sbin/sshd").exists():
        missing.append("sshd")
    return f"needs {', '.join(missing)}" if missing else ""
