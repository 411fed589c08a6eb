"""What processes of a run leave in /dev/shm, and its removal when nobody uses it any more.

Data of users lie there as well. A segment goes only if it appeared during the run, belongs to the
run's user, has a name that MPI, oneCCL, OpenMP or torch give, and is open or mapped in no process.
What a run has used of its own and does not fit is told, and left. What was seen is written down
beside the run, for the time after a death.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from orch_node import whole_files
from orch_node.agent.processes import PROC, Process
from orch_node.protocol import values

SHM = "/dev/shm/"
# Names as these libraries' own code makes them (their strings, or what lies there while they run).
NAMES = re.compile(
    r"""Intel_MPI_\w{6}
      | mpich(?:_s)?_shar_tmp\w{6}                           # MPICH
      | (?:vader|sm)_segment\.[\w.-]+ | osc_(?:rdma|sm)\.[\w.-]+   # Open MPI
      | psm3_shm\.\d+\.[\w.-]+ | \d+:\d+:\d+                 # libfabric: psm3, shm
      | EPS-shm-file[\w.-]* | ccl-rank2proc-eps-shm-[\w.-]+   # oneCCL
      | torch_\d+_\d+(?:_\d+)?                               # torch.multiprocessing
      | __KMP_REGISTERED_LIB_\d+_\d+""",
    re.VERBOSE,
)
# OpenMP's registration is neither open nor mapped after its start; it names its process.
OF_PROCESS = re.compile(r"__KMP_REGISTERED_LIB_(\d+)_\d+")


@dataclass(frozen=True)
class Notes:
    """Names in /dev/shm -> their inodes: `before` the run, and of what the run has used since."""

    before: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Removal:
    """Paths that went, and those of the run that are left."""

    gone: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def names() -> dict[str, int]:
    """What lies in /dev/shm, with its inode; nothing where a container has none."""
    try:
        with os.scandir(SHM) as found:
            return {one.name: one.inode() for one in found}
    except OSError:
        return {}


def remove_registrations() -> None:
    """Unlink OpenMP's registrations of this user's processes that have died.

    A rank that is killed leaves its own, and an agent that is killed with it cannot remove it.
    """
    for name, inode in names().items():
        match = OF_PROCESS.fullmatch(name)
        if match and not (PROC / match[1]).exists() and still(name, inode, os.getuid()):
            with contextlib.suppress(OSError):
                os.unlink(SHM + name)


def begin(path: Path) -> None:
    """Write down what lies there before the run, once: an agent may come back."""
    remove_registrations()
    if not path.exists():
        write(path, Notes(before=names()))


def note(path: Path, processes: Iterable[Process]) -> None:
    """Add what these processes of the run use, but nothing that was there before."""
    known = noted(path)
    found: dict[str, int] = {}
    for process in processes:
        found |= used_by(process.pid) | named_after(process.pid)
    new = {name: at for name, at in found.items() if known.before.get(name) != at}
    if not new.items() <= known.used.items():
        write(path, replace(known, used={**known.used, **new}))


def noted(path: Path) -> Notes:
    """Without notes that can be read nothing is known to be the run's."""
    try:
        return values.parse(Notes, path.read_text(), path.name)
    except (OSError, ValueError, values.ProtocolError):
        return Notes(before=names())


def write(path: Path, notes: Notes) -> None:
    """On a full disk what is known stays what it was: rather too little goes than too much."""
    with contextlib.suppress(OSError):
        whole_files.write(path, json.dumps(values.record(notes)))


def used_by(pid: int) -> dict[str, int]:
    """What the process has open or mapped of /dev/shm and what has not been unlinked. Of a file in
    a folder there, the folder."""
    try:
        maps = (PROC / str(pid) / "maps").read_text().splitlines()
        links = [os.readlink(link) for link in (PROC / str(pid) / "fd").iterdir()]
    except OSError:
        return {}
    paths = {line.split(maxsplit=5)[5] for line in maps if SHM in line} | set(links)
    found = {}
    for path in paths:
        if path.startswith(SHM) and not path.endswith(" (deleted)"):
            name = path[len(SHM) :].partition("/")[0]
            try:
                # A container may have a /dev/shm of its own, with the same names.
                if os.path.samefile(path, f"{PROC}/{pid}/root{path}"):
                    found[name] = os.lstat(SHM + name).st_ino
            except OSError:
                continue
    return found


def named_after(pid: int) -> dict[str, int]:
    found = ((OF_PROCESS.fullmatch(name), name, at) for name, at in names().items())
    return {name: at for match, name, at in found if match and int(match[1]) == pid}


def removable(path: Path) -> dict[str, int]:
    """Of what is noted: what is still the same, the run's user's, and known by its name."""
    user = path.stat().st_uid if path.exists() else os.getuid()
    known = noted(path)
    return {
        name: at
        for name, at in known.used.items()
        if NAMES.fullmatch(name) and known.before.get(name) != at and still(name, at, user)
    }


def remaining(path: Path) -> dict[str, int]:
    """All that is noted and still there."""
    return {name: at for name, at in noted(path).used.items() if still(name, at)}


def remove(path: Path) -> Removal:
    """Unlink what may go; the notes keep what is left."""
    if not noted(path).used:
        return Removal()
    used = {name for folder in PROC.iterdir() if folder.name.isdigit() for name in used_by(int(folder.name))}
    gone = []
    for name in removable(path):
        if name not in used:
            os.unlink(SHM + name)
            gone.append(SHM + name)
    left = remaining(path)
    write(path, replace(noted(path), used=left))
    return Removal(tuple(gone), tuple(SHM + name for name in left))


def forget(path: Path) -> None:
    """The run has ended: its notes are of use only where something is left."""
    if not remaining(path):
        path.unlink(missing_ok=True)


def still(name: str, inode: int, user: int | None = None) -> bool:
    """Whether it is there, and not another one of the same name; with `user`, a file of theirs
    with no other name."""
    if name in ("", ".", "..") or "/" in name:
        return False
    try:
        found = os.lstat(SHM + name)
    except OSError:
        return False
    theirs = stat.S_ISREG(found.st_mode) and found.st_uid == user and found.st_nlink == 1
    return found.st_ino == inode and (user is None or theirs)
