"""Segments in /dev/shm that processes of a run use, and their removal when nobody does any more.

A segment belongs to a run if one of the run's processes has it open or mapped; its name alone says
nothing. What was seen is written down beside the run, for the time after a death.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from orch_node import whole_files
from orch_node.agent.processes import PROC, Process

SHM = "/dev/shm/"


def names() -> set[str]:
    """What lies in /dev/shm; nothing where a container has none."""
    try:
        return set(os.listdir(SHM))
    except OSError:
        return set()


def note(notes: Path, processes: Iterable[Process]) -> None:
    """Add the segments of these processes to the file `notes`: path -> inode."""
    known = noted(notes)
    found = {path: inode for process in processes for path, inode in used_by(process.pid).items()}
    if not found.items() <= known.items():
        whole_files.write(notes, json.dumps({**known, **found}))


def noted(notes: Path) -> dict[str, int]:
    try:
        return dict(json.loads(notes.read_text()))
    except (OSError, ValueError):
        return {}


def used_by(pid: int) -> dict[str, int]:
    """Path -> inode of what the process has of /dev/shm and what has not been unlinked."""
    found = {}
    try:
        maps = (PROC / str(pid) / "maps").read_text().splitlines()
        links = [os.readlink(link) for link in (PROC / str(pid) / "fd").iterdir()]
    except OSError:
        return {}
    paths = {line.split(maxsplit=5)[5] for line in maps if SHM in line} | set(links)
    for path in paths:
        if path.startswith(SHM) and not path.endswith(" (deleted)"):
            try:
                # A container may have a /dev/shm of its own, with the same names.
                if os.path.samefile(path, f"{PROC}/{pid}/root{path}"):
                    found[path] = os.stat(path).st_ino
            except OSError:
                continue
    return found


def remove(notes: Path) -> list[str]:
    """Unlink the segments noted there that are still the same and that no process uses."""
    segments = noted(notes)
    if not segments:
        return []
    used = {path for folder in PROC.iterdir() if folder.name.isdigit()
            for path in used_by(int(folder.name))}  # fmt: skip
    gone = []
    for path, inode in segments.items():
        if path not in used and still(path, inode):
            os.unlink(path)
            gone.append(path)
    left = {path: inode for path, inode in segments.items() if still(path, inode)}
    if left:
        whole_files.write(notes, json.dumps(left))
    else:
        notes.unlink(missing_ok=True)
    return gone


def still(path: str, inode: int) -> bool:
    """Whether the segment is there, and not another one of the same name."""
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False
