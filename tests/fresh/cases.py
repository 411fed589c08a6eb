"""Define machines of people who have just cloned orch."""

from __future__ import annotations

from dataclasses import dataclass

# PyTorch's index, which has the small CPU builds.
CPU_INDEX = "download.pytorch.org"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A bare Debian and its user."""

    suite: str
    user: str = "alice"
    build: str = "cpu"  # build of PyTorch: cpu, or default for that of PyPI
    folder: str = "orch"
    locked_home: bool = False  # HOME is not writable
    umask: str = "022"
    one_core: bool = False
    small_tmp: bool = False  # /tmp has 256 MB


CASES = {
    "bookworm-user": Case(suite="bookworm", folder="my orch", umask="077"),
    "bookworm-root": Case(suite="bookworm", user="root", one_core=True),
    "bookworm-user-default": Case(suite="bookworm", build="default", folder="my orch", locked_home=True, umask="077"),
    "trixie-user": Case(suite="trixie", folder="my orch", umask="077"),
    "trixie-root-default": Case(
        suite="trixie", user="root", build="default", locked_home=True, umask="077", small_tmp=True
    ),
}
# The cheapest case; the others download several GB or test nothing in addition.
CHEAPEST = "bookworm-user"
