"""Hosts for measurements between them: namespaces of this machine, each with a name, processes and
a /dev/shm of its own, whose links meet in a switch and are shaped by tbf at both ends. Needs root,
iproute2 and util-linux; all of it goes when the process that has made it ends.
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
# It ends with its input.
KEEPER = """
set -eu
hostname {name}
mount --bind {names} /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mount -t sysfs sysfs /sys
ip link set lo up
echo ready
exec cat > /dev/null
"""
WARM_UP, MEASURED = 0.5, 1.0  # seconds of sockets()
BUFFER = 1 << 20


@dataclass(frozen=True)
class Host:
    """`pid`: of the process that keeps its namespaces."""

    name: str
    address: str
    pid: int

    def command(self, *words: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), *NAMESPACES, *words]


@dataclass(frozen=True)
class Network:
    hosts: list[Host]
    switch: Host


@contextmanager
def network(count: int, mbit: int = 0) -> Iterator[Network]:
    """host0, host1 ... and what they are joined by. `mbit`: Mbit/s of each link, 0 for unshaped.

    A switch's port is a 20th faster than its host, so that only what meets there waits there.
    """
    names = [*(f"host{number}" for number in range(count)), "switch"]
    places = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, start=1)}
    with ExitStack() as stack:
        known = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "hosts"
        lines = [f"{address} {name}\n" for name, address in places.items()]
        known.write_text("127.0.0.1 localhost\n" + "".join(lines))
        *hosts, switch = (stack.enter_context(keep(name, address, known)) for name, address in places.items())
        join(hosts, switch)
        for number, one in enumerate(hosts):
            for at, device in ((one, "net0"), (switch, one.name)):
                keep_order(at, device, core_of(number))
                if mbit:
                    shape(at, device, mbit if at is one else mbit * 21 // 20)
        yield Network(hosts, switch)


@contextmanager
def keep(name: str, address: str, names: Path) -> Iterator[Host]:
    """A host until the end of the block. `names`: its /etc/hosts."""
    begin = ["sh", "-c", KEEPER.format(name=name, names=names)]
    unshare = ["unshare", *NAMESPACES, "--fork", "--mount-proc", "--kill-child"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*unshare, *begin], stdin=pipe, stdout=pipe) as keeper:
        try:
            assert keeper.stdout is not None
            if keeper.stdout.readline() != b"ready\n":
                raise SystemExit("hosts are namespaces: this needs root")
            children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text()
            yield Host(name, address, int(children))
        finally:
            keeper.kill()


def join(hosts: list[Host], switch: Host) -> None:
    """By a bridge, in a namespace of its own: container engines drop what crosses others."""
    run("ip", "link", "add", "net0", "netns", str(switch.pid), "type", "bridge")
    for one in hosts:
        run(
            "ip",
            "link",
            "add",
            "net0",
            "netns",
            str(one.pid),
            "type",
            "veth",
            "peer",
            "name",
            one.name,
            "netns",
            str(switch.pid),
        )
        run(*switch.command("ip", "link", "set", one.name, "master", "net0", "up"))
    for one in (*hosts, switch):
        run(*one.command("ip", "addr", "add", f"{one.address}/24", "dev", "net0"))
        run(*one.command("ip", "link", "set", "net0", "up"))
        # Linux's own choice, which this machine may have changed.
        run(
            *one.command(
                "ip", "route", "replace", f"{NETWORK}.0/24", "dev", "net0", "src", one.address, "congctl", "cubic"
            )
        )


def keep_order(at: Host, device: str, core: int) -> None:
    """One core takes all that comes: where two do, segments overtake each other, and TCP takes that
    for losses."""
    queue = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"
    run(*at.command("sh", "-c", f"echo {1 << core:x} > {queue}"))


def shape(at: Host, device: str, mbit: int) -> None:
    """What has been saved up goes at once: a millisecond's worth, or the longest segment."""
    burst = max(64_000, mbit * 125)
    run(
        *at.command(
            "tc",
            "qdisc",
            "add",
            "dev",
            device,
            "root",
            "tbf",
            "rate",
            f"{mbit}mbit",
            "burst",
            str(burst),
            "latency",
            "50ms",
        )
    )


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def link_rate(hosts: list[Host]) -> float:
    """Bytes per second that sockets carry: the best of three, because other programs only take from
    it."""
    return max(sockets(hosts) for _ in range(3))


def sockets(hosts: list[Host]) -> float:
    """Each host sends to the next, all at once, on the core that its rank will have: the median."""
    started = []
    for number, one in enumerate(hosts):
        onwards = hosts[(number + 1) % len(hosts)].address
        words = ("taskset", "-c", str(core_of(number)), sys.executable, __file__, onwards)
        started.append(subprocess.Popen(one.command(*words), stdout=subprocess.PIPE, text=True))
    return statistics.median(float(one.communicate(timeout=30)[0]) for one in started)


def core_of(rank: int) -> int:
    """The hosts are one machine, whose cores they take in turn."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[rank % len(cores)]


def send_to(address: str) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            onwards = create_connection((address, PORT), timeout=10)
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    data = bytes(BUFFER)
    ends = time.monotonic() + WARM_UP + MEASURED + 0.5
    with onwards:
        while time.monotonic() < ends:
            onwards.sendall(data)


def received() -> float:
    """Bytes per second, after a warm-up."""
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
    """One host's part in sockets(); its argument is the address of the next host."""
    sender = threading.Thread(target=send_to, args=[sys.argv[1]], daemon=True)
    sender.start()
    print(received())
    sender.join()


if __name__ == "__main__":
    main()
