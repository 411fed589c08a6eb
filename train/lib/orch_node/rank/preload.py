"""LD_PRELOAD for libraries whose paths the loader would take apart (ld.so(8))."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping

TAKEN_APART = " $"  # a space separates, and $LIB is replaced; a colon separates for us, too
NAME = "LD_PRELOAD"


def reachable(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, with links in a private folder in the place of paths with a space."""
    if NAME not in environment:
        return dict(environment)
    paths = environment[NAME].split(":")
    return {**environment, NAME: ":".join(map(link_to, paths))}


def link_to(path: str) -> str:
    """A link to the file by a path that the loader takes as it is; the path where none is needed,
    or none can be made."""
    if not any(sign in path for sign in TAKEN_APART) or not os.path.isfile(path):
        return path
    folder = private_folder()
    if folder is None:
        return path
    link = f"{folder}/{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.so"
    try:
        os.symlink(path, link)
    except FileExistsError:  # another rank's, or an earlier run's: the name says where it leads
        pass
    except OSError:
        return path
    return link


def private_folder() -> str | None:
    """A folder of this user alone, the same for all runs: of some bytes, and never removed."""
    user = os.getuid()
    for base in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        folder = f"{base}/orch-preload-{user}"
        if any(sign in folder for sign in (*TAKEN_APART, ":")):
            continue
        try:
            os.mkdir(folder, 0o700)
        except OSError:  # it is there, or cannot be
            pass
        if is_private(folder, user):
            return folder
    return None


def is_private(folder: str, user: int) -> bool:
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o077
