"""glibc's malloc for training: what a step frees, the next one asks for again.

By default glibc gives memory from 128 KiB to 32 MiB on (the threshold moves) back to the kernel as
soon as it is free, and each step gets it back page by page, filled with zeros: of MiniLM's step, a
fifth (docs/explanation/performance.md). Kept in the heap it costs nothing. tcmalloc keeps it, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

NAME = "GLIBC_TUNABLES"
# mallopt(3): nothing by mmap, and the heap's top stays. Unlike a high threshold for mmap, older
# releases take both.
KEEP = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=9223372036854775807"


def keeping(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, with glibc told to keep what it has; as it is where the user has told glibc
    something, or another malloc is preloaded."""
    told = any(name == NAME or name.startswith("MALLOC_") for name in environment)
    libraries = map(os.path.basename, environment.get("LD_PRELOAD", "").split(":"))
    if told or any("malloc" in library for library in libraries):
        return dict(environment)
    return {**environment, NAME: KEEP}
