"""The commands and hostfiles of MPI's launchers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A line of a hostfile.
HOST_LINES = {"intel": "{address}:{ranks}", "mpich": "{address}:{ranks}", "openmpi": "{address} slots={ranks}"}


@dataclass(frozen=True)
class LauncherCommand:
    """The command of a launcher."""

    argv: tuple[str, ...]
    size_at: int  # the index of the number of ranks in argv


def intel(program: str, hostfile: str, size: int, ranks: Sequence[str]) -> LauncherCommand:
    """Return the command of Intel MPI's mpiexec.hydra; its `mpirun` does not forward signals.

    With -f or -ppn, hydra starts the same number of ranks on each host, whatever the hostfile says
    (Intel MPI 2021.18). With -machinefile it uses the number of each host.
    """
    return with_size((program, "-machinefile", hostfile), size, ranks)


def mpich(program: str, hostfile: str, size: int, ranks: Sequence[str]) -> LauncherCommand:
    """Return the command of MPICH's hydra."""
    return with_size((program, "-f", hostfile), size, ranks)


def open_mpi(
    program: str,
    hostfile: str,
    size: int,
    ranks: Sequence[str],
    *,
    options: Iterable[str] = (),
    exported: Iterable[str] = (),
) -> LauncherCommand:
    """Return the command of Open MPI, which places ranks in the hostfile's order, unbound.

    Args:
        program: path of mpirun.
        hostfile: path of the hostfile.
        size: number of ranks.
        ranks: the command of each rank.
        options: further options of mpirun.
        exported: names of variables for ranks on other nodes; hydra exports all variables.
    """
    exports = (word for name in exported for word in ("-x", name))
    placed = ("--map-by", "slot", "--bind-to", "none")
    return with_size((program, "--hostfile", hostfile, *placed, *options, *exports), size, ranks)


def with_size(head: tuple[str, ...], size: int, ranks: Sequence[str]) -> LauncherCommand:
    """Return the command with the number of ranks and their command."""
    return LauncherCommand(argv=(*head, "-n", str(size), *ranks), size_at=len(head) + 1)


def hostfile(implementation: str, hosts: Iterable[tuple[str, int]]) -> str:
    """Return the content of a hostfile.

    Args:
        implementation: intel, mpich or openmpi.
        hosts: address and number of ranks of each host, in the order of ranks.
    """
    line = HOST_LINES[implementation]
    return "".join(line.format(address=host, ranks=ranks) + "\n" for host, ranks in hosts)
