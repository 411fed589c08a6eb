"""Variables of the dynamic loader and of glibc's malloc: LD_PRELOAD and GLIBC_TUNABLES."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping

PRELOAD, TUNABLES = "LD_PRELOAD", "GLIBC_TUNABLES"
UNSAFE_CHARACTERS = " $"  # ld.so(8) splits at spaces, and replaces $LIB; paths are joined by colons
# mallopt(3): nothing by mmap, and never trim the heap's top. Unlike a high threshold for mmap,
# older releases accept both.
KEEP_HEAP = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=9223372036854775807"


def with_kept_heap(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with glibc's malloc set to keep freed memory.

    By default glibc returns blocks of 128 KiB to 32 MiB (the threshold moves) to the kernel when
    they are freed, and each training step gets them back page by page, filled with zeros: a fifth
    of MiniLM's step (docs/explanation/performance.md). The user's own settings of glibc and
    another preloaded malloc take precedence.
    """
    has_settings = any(name == TUNABLES or name.startswith("MALLOC_") for name in environment)
    libraries = map(os.path.basename, environment.get(PRELOAD, "").split(":"))
    if has_settings or any("malloc" in library for library in libraries):
        return dict(environment)
    return {**environment, TUNABLES: KEEP_HEAP}


def with_loadable_preload(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with links instead of preloaded paths that the loader would split."""
    if PRELOAD not in environment:
        return dict(environment)
    paths = environment[PRELOAD].split(":")
    return {**environment, PRELOAD: ":".join(map(link_to, paths))}


def link_to(path: str) -> str:
    """Return a loadable link to the file, or the path if it needs no link or none can be made."""
    if not any(character in path for character in UNSAFE_CHARACTERS) or not os.path.isfile(path):
        return path
    folder = private_folder()
    if folder is None:
        return path
    link = f"{folder}/{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.so"
    try:
        os.symlink(path, link)
    except FileExistsError:  # made by another rank or run; the name depends on the target only
        pass
    except OSError:
        return path
    return link


def private_folder() -> str | None:
    """Return a folder for links that only this user can write; all runs share it, and it stays."""
    user = os.getuid()
    for base in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        folder = f"{base}/orch-preload-{user}"
        if any(character in folder for character in (*UNSAFE_CHARACTERS, ":")):
            continue
        try:
            os.mkdir(folder, 0o700)
        except OSError:  # it exists, or cannot be created
            pass
        if is_private(folder, user):
            return folder
    return None


def is_private(folder: str, user: int) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o077
