"""The machines of people who have just cloned orch, as values."""

from __future__ import annotations

from dataclasses import dataclass

# PyTorch's own index, which has its small builds.
CPU_INDEX = "download.pytorch.org"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A bare Debian, and how somebody uses it. `build`: cpu, or default: what PyPI has."""

    suite: str
    user: str = "alice"
    build: str = "cpu"
    folder: str = "orch"
    locked_home: bool = False
    umask: str = "022"
    one_core: bool = False
    small_tmp: bool = False

    def __str__(self) -> str:
        words = (self.suite, self.user, f"{self.build} build", f"'{self.folder}'")
        home = ("HOME not writable",) if self.locked_home else ()
        core = ("one core",) if self.one_core else ()
        tmp = ("small /tmp",) if self.small_tmp else ()
        return ", ".join((*words, f"umask {self.umask}", *home, *core, *tmp))


BOOKWORM = {
    "bookworm-user": Case(suite="bookworm", folder="my orch", umask="077"),
    "bookworm-root": Case(suite="bookworm", user="root", one_core=True),
    "bookworm-locked": Case(suite="bookworm", folder="my orch", locked_home=True),
    "bookworm-user-default": Case(suite="bookworm", build="default", folder="my orch", locked_home=True, umask="077"),
    "bookworm-root-default": Case(suite="bookworm", user="root", build="default"),
}
TRIXIE = {
    "trixie-user": Case(suite="trixie", folder="my orch", umask="077"),
    "trixie-root": Case(suite="trixie", user="root", folder="my orch"),
    "trixie-user-default": Case(suite="trixie", build="default", folder="my orch"),
    "trixie-root-default": Case(
        suite="trixie", user="root", build="default", locked_home=True, umask="077", small_tmp=True
    ),
}
CASES = BOOKWORM | TRIXIE
# Of all cases the one that costs least; the others bring several GB, or nothing that it does not.
CHEAPEST = "bookworm-user"
