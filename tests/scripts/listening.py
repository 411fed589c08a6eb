"""Where the processes of this run listen on this host, from /proc alone."""

import ipaddress
import os
import struct
from pathlib import Path

LISTEN = "0A"
PROC = Path("/proc")


def parent(pid: int) -> int:
    return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def name(pid: int) -> str:
    return (PROC / str(pid) / "comm").read_text().strip()


def of_run(pid: int, run: str) -> bool:
    try:
        return f"ORCH_RUN_DIR={run}".encode() in (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False


def processes(run: str) -> set[int]:
    """Those that name the run, and the daemons above them, up to what serves the connection."""
    numbers = [int(one.name) for one in PROC.iterdir() if one.name.isdigit()]
    found = {pid for pid in numbers if of_run(pid, run)}
    for pid in list(found):
        while (pid := parent(pid)) > 1 and (name(pid).startswith(("hydra", "mpiexec", "prte"))):
            found.add(pid)
    return found


def sockets(pid: int) -> set[str]:
    found = set()
    try:
        for one in (PROC / str(pid) / "fd").iterdir():
            link = os.readlink(one)
            if link.startswith("socket:["):
                found.add(link[8:-1])
    except OSError:
        pass
    return found


def address(hexadecimal: str) -> str:
    words = [int(hexadecimal[at : at + 8], 16) for at in range(0, len(hexadecimal), 8)]
    return str(ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words)))


def listening() -> dict[str, str]:
    """Inode of a socket -> where it listens."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in (PROC / "self/net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN:
                found[fields[9]] = address(fields[1].partition(":")[0])
    return found


def listeners(run: str) -> list[tuple[str, str]]:
    """(program, address) of each socket that a process of the run listens with."""
    known = listening()
    return [
        (name(pid), known[inode]) for pid in processes(run) for inode in sockets(pid) & set(known)
    ]
