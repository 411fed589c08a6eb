"""Read the hosts in a hostfile of MPICH, Open MPI, Intel MPI, DeepSpeed, Slurm, PBS or Grid Engine."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.files import foreign_kind, read_text
from orchestrator.model.hosts import split_list
from orchestrator.model.printable import one_line

FORMS = "Each line has a host and optionally its slots: `node1`, `node1:4` (MPICH), `node1 slots=4` (Open MPI), "
FORMS += "`node[1-4,7]` (Slurm)."
PORT_HINT = "A port belongs in ~/.ssh/config or on the command line: orch init NAME node1:2222"
READABLE_HINT = f"--hostfile reads a text file. {FORMS}"
STDIN = "-"
MAX_SLOTS = 1023
# A host with its slots, or an IPv6 address without brackets.
HOST = re.compile(r"(?P<host>[^:\s]+|\[[\da-fA-F:.]+\])(?::(?P<slots>\d+))?|(?!\[).*:.*:.*")
SLOTS = ("slots", "cpu", "cpus", "count")
USERS = ("user", "username", "user_name", "user-name")
# They limit or bind ranks of MPI, which orch does itself, or name another interface.
IGNORED = ("max_slots", "max-slots", "slots_max", "slots-max", "binding", "ifhn", "schedule")
SETTING = re.compile(r"(?P<name>[A-Za-z][\w-]*)=(?P<value>\S+)")


def load_hostfile(path: Path) -> dict[str, int]:
    """Return the hosts in a file, or in the standard input for the path `-`, each with its number of slots.

    A host is a name, an address or a range, with a user before `@` if the file has one.

    Raises:
        RequestError: if the file cannot be read, or a line is not one of a hostfile.
    """
    # sshd may pass the standard input as a socket, as which /dev/stdin cannot be opened.
    text = sys.stdin.buffer.read().decode(errors="replace") if str(path) == STDIN else read_text(path, READABLE_HINT)
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, source: str) -> dict[str, int]:
    """Return the hosts in the text of a hostfile with their slots; 1 for each line of a host without a number."""
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        for host, count in parse_line(entry, f"{source}, line {number}", source) if entry else ():
            slots[host] = slots.get(host, 0) + count
    return slots


def parse_line(entry: str, location: str, source: str) -> list[tuple[str, int]]:
    """Return the hosts in a line, each with its slots; raise RequestError for a line of another format."""
    if kind := foreign_kind("lines_of_hosts", Path(source), entry):
        raise RequestError(f"{location}: this looks like {kind['title']}.", hint=kind["hint"].replace("{path}", source))
    hosts, *settings = entry.split()
    user, counts = "", []
    # Grid Engine: host, slots, queue, processors
    if len(settings) == 3 and settings[0].isdecimal() and "@" in settings[1]:
        settings = [f"slots={settings[0]}"]
    for setting in settings:
        match = SETTING.fullmatch(setting)
        if match is None:
            raise RequestError(f"{location}: unexpected {one_line(setting)[:80]!r} after the host.", hint=FORMS)
        if match["name"] in SLOTS:
            counts.append(match["value"])
        elif match["name"] in USERS:
            user = f"{match['value']}@"
        elif match["name"] not in IGNORED:
            hint = PORT_HINT if match["name"] == "port" else did_you_mean(match["name"], (*SLOTS, *USERS, *IGNORED))
            raise RequestError(f"{location}: unknown setting {one_line(setting)[:80]!r}.", hint=hint)
    return [parse_host(host, user, counts, location) for host in split_list(hosts)]


def parse_host(text: str, user: str, counts: list[str], location: str) -> tuple[str, int]:
    """Return a host with its user, and its number of slots."""
    match = HOST.fullmatch(text)
    if match is None:
        raise RequestError(f"{location}: {one_line(text)[:80]!r} is not a host.", hint=FORMS)
    host, slots = match["host"] or text, match["slots"]
    host = host.strip("[]") if host.startswith("[") else host
    for count in (*counts, *([slots] if slots else [])):
        if not count.isdecimal() or not 0 < int(count) <= MAX_SLOTS:
            raise RequestError.about("slots-of-host", location=location, count=one_line(count)[:20], most=MAX_SLOTS)
    return (host if "@" in host else f"{user}{host}"), int(slots or (counts or ["1"])[0])
