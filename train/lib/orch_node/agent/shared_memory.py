"""Remove what processes of a run leave in /dev/shm, once nobody uses it.

Users keep data there as well. A segment is removed only if it appeared during the run, belongs to
the run's user, has a name that MPI, oneCCL, OpenMP or torch choose, and is neither open nor mapped
in any process. Other files of the run are reported, but stay. Notes next to the run record what was
there before and what the run used, so that they survive the agent.
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

from orch_node import atomic_write
from orch_node.agent.processes import PROC, all_pids
from orch_node.protocol import values
from orch_node.protocol.outcome import ProcessRecord

SHM = "/dev/shm/"
# Names by library, as in its source code or binaries, or as seen in /dev/shm.
LIBRARIES = re.compile("|".join(json.loads(Path(__file__).with_name("shared_memory_names.json").read_text()).values()))
# OpenMP's registration is neither open nor mapped after the start, but its name has the pid.
OPENMP_REGISTRATION = re.compile(r"__KMP_REGISTERED_LIB_(\d+)_\d+")


@dataclass(frozen=True)
class Notes:
    """Records of /dev/shm, as name -> inode."""

    before: dict[str, int] = field(default_factory=dict)  # the run
    used: dict[str, int] = field(default_factory=dict)  # by the run, and not there before


@dataclass(frozen=True)
class Removal:
    """Paths of a run's segments that were removed, and of those that remain."""

    removed: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()


def segments() -> dict[str, int]:
    """Return name -> inode of what is in /dev/shm; nothing in a container without it."""
    with contextlib.suppress(OSError), os.scandir(SHM) as entries:
        return {entry.name: entry.inode() for entry in entries}
    return {}


def remove_registrations() -> None:
    """Unlink OpenMP's registrations of this user's dead processes.

    A killed rank leaves its registration, and an agent that is killed with it cannot remove it.
    """
    for name, inode in segments().items():
        match = OPENMP_REGISTRATION.fullmatch(name)
        if match and not (PROC / match[1]).exists() and is_unchanged(name, inode, os.getuid()):
            with contextlib.suppress(OSError):
                os.unlink(SHM + name)


def begin(path: Path) -> None:
    """Note what is there before the run, unless an earlier agent of the run has done so."""
    remove_registrations()
    if not path.exists():
        write_notes(path, Notes(before=segments()))


def note_usage(path: Path, processes: Iterable[ProcessRecord]) -> None:
    """Note what these processes of the run use, except what was there before the run."""
    notes = read_notes(path)
    used: dict[str, int] = {}
    for process in processes:
        used |= used_by(process.pid) | registrations_of(process.pid)
    new = {name: inode for name, inode in used.items() if notes.before.get(name) != inode}
    if not new.items() <= notes.used.items():
        write_notes(path, replace(notes, used={**notes.used, **new}))


def read_notes(path: Path) -> Notes:
    """Return the notes; without readable ones, nothing is known to belong to the run."""
    return values.load(lambda content: values.parse(Notes, content, path.name), path) or Notes(before=segments())


def write_notes(path: Path, notes: Notes) -> None:
    """Write the notes; on a full disk the old ones stay, so that too little is removed, if anything."""
    with contextlib.suppress(OSError):
        atomic_write.write(path, values.render(notes))


def used_by(pid: int) -> dict[str, int]:
    """Return what a process has open or mapped in /dev/shm and is not unlinked.

    For a file in a folder, the folder.
    """
    try:
        maps = (PROC / str(pid) / "maps").read_text().splitlines()
        links = [os.readlink(link) for link in (PROC / str(pid) / "fd").iterdir()]
    except OSError:
        return {}
    paths = {line.split(maxsplit=5)[5] for line in maps if SHM in line} | set(links)
    used = {}
    for path in paths:
        if path.startswith(SHM) and not path.endswith(" (deleted)"):
            name = path[len(SHM) :].partition("/")[0]
            with contextlib.suppress(OSError):
                # A container may have another /dev/shm with the same names.
                if os.path.samefile(path, f"{PROC}/{pid}/root{path}"):
                    used[name] = os.lstat(SHM + name).st_ino
    return used


def registrations_of(pid: int) -> dict[str, int]:
    """Return OpenMP's registrations of a process."""
    matches = ((OPENMP_REGISTRATION.fullmatch(name), name, inode) for name, inode in segments().items())
    return {name: inode for match, name, inode in matches if match and int(match[1]) == pid}


def remaining(notes: Notes) -> dict[str, int]:
    """Return all noted segments that still exist."""
    return {name: inode for name, inode in notes.used.items() if is_unchanged(name, inode)}


def remove(path: Path, *, dry_run: bool = False) -> Removal:
    """Unlink the segments of libraries that no process uses; the notes keep what remains.

    Args:
        path: the notes.
        dry_run: remove nothing, and return what may be removed once no process uses it.
    """
    notes = read_notes(path)
    if not (segments := remaining(notes)):
        return Removal()
    user = path.stat().st_uid
    in_use = set() if dry_run else {name for pid in all_pids() for name in used_by(pid)}
    removed = {
        name: inode
        for name, inode in segments.items()
        if name not in in_use and LIBRARIES.fullmatch(name) and notes.before.get(name) != inode
        if is_unchanged(name, inode, user)
    }
    for name in removed if not dry_run else ():
        os.unlink(SHM + name)
    remaining_names = [name for name in segments if name not in removed]
    if not dry_run:
        write_notes(path, replace(notes, used={name: segments[name] for name in remaining_names}))
    return Removal(tuple(SHM + name for name in removed), tuple(SHM + name for name in remaining_names))


def forget(path: Path) -> None:
    """Delete the notes of a run that has ended, unless some of its segments remain."""
    if not remaining(read_notes(path)):
        path.unlink(missing_ok=True)


def is_unchanged(name: str, inode: int, user: int | None = None) -> bool:
    """Return whether a segment still has this inode.

    Args:
        name: in /dev/shm.
        inode: as noted.
        user: if given, the segment must be a file of this user, without further links.
    """
    if name in ("", ".", "..") or "/" in name:
        return False
    with contextlib.suppress(OSError):
        status = os.lstat(SHM + name)
        is_file_of_user = stat.S_ISREG(status.st_mode) and status.st_uid == user and status.st_nlink == 1
        return status.st_ino == inode and (user is None or is_file_of_user)
    return False
