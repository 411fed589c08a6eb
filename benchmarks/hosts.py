"""Create hosts for measurements as namespaces of this machine.

Each host has a separate name, process tree and /dev/shm. Their links meet in a switch and are shaped by tbf at both
ends. This needs root, iproute2 and util-linux. Everything is removed when the creating process ends.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection, create_server

NETWORK, PORT = "10.213.7", 29400
NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--mount")
# This process holds the namespaces until its input ends.
KEEPER = """
set -eu
hostname {name}
mount --bind {hosts_file} /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mount -t sysfs sysfs /sys
ip link set lo up
echo ready
exec cat > /dev/null
"""
WARM_UP, MEASURED = 0.5, 1.0  # seconds of one measurement of the link
BUFFER = 1 << 20


@dataclass(frozen=True)
class Host:
    """A namespace that acts as a host."""

    name: str
    address: str
    pid: int  # of the process that holds the namespaces

    def command(self, *arguments: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), *NAMESPACES, *arguments]


@dataclass(frozen=True)
class Network:
    hosts: list[Host]
    switch: Host


@contextmanager
def network(count: int, mbit: int = 0) -> Iterator[Network]:
    """Create host0, host1 and so on, and the switch between them.

    A port of the switch is 5 % faster than its host, so that only colliding traffic waits there.

    Args:
        count: number of hosts.
        mbit: rate of each link in Mbit/s; 0 does not shape the links.
    """
    names = [*(f"host{number}" for number in range(count)), "switch"]
    addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, start=1)}
    with ExitStack() as stack:
        hosts_file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "hosts"
        lines = [f"{address} {name}\n" for name, address in addresses.items()]
        hosts_file.write_text("127.0.0.1 localhost\n" + "".join(lines))
        *hosts, switch = (
            stack.enter_context(running_host(name, address, hosts_file)) for name, address in addresses.items()
        )
        join(hosts, switch)
        for number, host in enumerate(hosts):
            for end, device in ((host, "net0"), (switch, host.name)):
                keep_order(end, device, core_of(number))
                if mbit:
                    shape(end, device, mbit if end is host else mbit * 21 // 20)
        yield Network(hosts, switch)


@contextmanager
def running_host(name: str, address: str, hosts_file: Path) -> Iterator[Host]:
    """Run a host until the end of the block, with this file as its /etc/hosts."""
    begin = ["sh", "-c", KEEPER.format(name=name, hosts_file=hosts_file)]
    unshare = ["unshare", *NAMESPACES, "--fork", "--mount-proc", "--kill-child"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*unshare, *begin], stdin=pipe, stdout=pipe) as keeper:
        try:
            assert keeper.stdout is not None
            if keeper.stdout.readline() != b"ready\n":
                raise SystemExit("Creating network namespaces needs root.")
            children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text()
            yield Host(name, address, int(children))
        finally:
            keeper.kill()


def join(hosts: list[Host], switch: Host) -> None:
    """Connect the hosts by a bridge in the switch's namespace; container engines drop traffic of other bridges."""
    run("ip", "link", "add", "net0", "netns", str(switch.pid), "type", "bridge")
    for host in hosts:
        peer = ("peer", "name", host.name, "netns", str(switch.pid))
        run("ip", "link", "add", "net0", "netns", str(host.pid), "type", "veth", *peer)
        run(*switch.command("ip", "link", "set", host.name, "master", "net0", "up"))
    for host in (*hosts, switch):
        run(*host.command("ip", "addr", "add", f"{host.address}/24", "dev", "net0"))
        run(*host.command("ip", "link", "set", "net0", "up"))
        # Use Linux's default, which this machine may have changed.
        route = (f"{NETWORK}.0/24", "dev", "net0", "src", host.address, "congctl", "cubic")
        run(*host.command("ip", "route", "replace", *route))


def keep_order(host: Host, device: str, core: int) -> None:
    """Receive on one core only: with two, segments overtake each other, which TCP takes for losses."""
    queue = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"
    run(*host.command("sh", "-c", f"echo {1 << core:x} > {queue}"))


def shape(host: Host, device: str, mbit: int) -> None:
    """Limit the rate of a device, with bursts of a millisecond or of the longest segment."""
    burst = max(64_000, mbit * 125)
    limits = ("rate", f"{mbit}mbit", "burst", str(burst), "latency", "50ms")
    run(*host.command("tc", "qdisc", "add", "dev", device, "root", "tbf", *limits))


def run(*arguments: str) -> None:
    subprocess.run(arguments, check=True)


def link_rate(hosts: list[Host]) -> float:
    """Return the bytes per second that sockets carry, as the best of three: other programs only reduce it."""
    return max(socket_rate(hosts) for _ in range(3))


def socket_rate(hosts: list[Host]) -> float:
    """Let each host send to the next one at the same time, on its rank's core, and return the median rate."""
    started = []
    for number, host in enumerate(hosts):
        next_address = hosts[(number + 1) % len(hosts)].address
        command = ("taskset", "-c", str(core_of(number)), sys.executable, __file__, next_address)
        started.append(subprocess.Popen(host.command(*command), stdout=subprocess.PIPE, text=True))
    return statistics.median(float(process.communicate(timeout=30)[0]) for process in started)


def core_of(rank: int) -> int:
    """Return the core of a rank; the hosts share this machine's cores in turn."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[rank % len(cores)]


def send_to(address: str) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            connection = create_connection((address, PORT), timeout=10)
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    data = bytes(BUFFER)
    ends = time.monotonic() + WARM_UP + MEASURED + 0.5
    with connection:
        while time.monotonic() < ends:
            connection.sendall(data)


def receive_rate() -> float:
    """Return the received bytes per second after a warm-up."""
    with create_server(("", PORT)) as server:
        sender, _ = server.accept()
        data = bytearray(BUFFER)
        with sender:
            begins = time.monotonic() + WARM_UP
            while time.monotonic() < begins:
                sender.recv_into(data)
            count, begins = 0, time.monotonic()
            while time.monotonic() < begins + MEASURED:
                count += sender.recv_into(data)
            rate = count / (time.monotonic() - begins)
            while sender.recv_into(data):
                pass
    return rate


def main() -> None:
    """Send to the host whose address is the first argument, and print the received rate."""
    sender = threading.Thread(target=send_to, args=[sys.argv[1]], daemon=True)
    sender.start()
    print(receive_rate())
    sender.join()


if __name__ == "__main__":
    main()
