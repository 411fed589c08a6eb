"""How the launchers of MPI are told what to start: their words and hostfiles, written once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A line of a hostfile: with {address} and {ranks}.
HOST_LINES = {"intel": "{address}:{ranks}", "mpich": "{address}:{ranks}", "openmpi": "{address} slots={ranks}"}


@dataclass(frozen=True)
class Words:
    """`size_at`: where in argv the number of ranks stands."""

    argv: tuple[str, ...]
    size_at: int


def intel(program: str, hostfile: str, size: int, ranks: Sequence[str]) -> Words:
    """mpiexec.hydra of Intel MPI. Never its `mpirun`: that shell wrapper swallows signals.

    With -f, and with -ppn, hydra gives every host the same number of ranks whatever the file says
    (Intel MPI 2021.18); -machinefile honours the number behind each host.
    """
    return sized((program, "-machinefile", hostfile), size, ranks)


def mpich(program: str, hostfile: str, size: int, ranks: Sequence[str]) -> Words:
    return sized((program, "-f", hostfile), size, ranks)


def open_mpi(
    program: str,
    hostfile: str,
    size: int,
    ranks: Sequence[str],
    *,
    options: Iterable[str] = (),
    carried: Iterable[str] = (),
) -> Words:
    """Ranks are placed in the hostfile's order, unbound. `carried`: variables that ranks on other
    nodes get; hydra passes everything on."""
    named = (word for name in carried for word in ("-x", name))
    placed = ("--map-by", "slot", "--bind-to", "none")
    return sized((program, "--hostfile", hostfile, *placed, *options, *named), size, ranks)


def sized(head: tuple[str, ...], size: int, ranks: Sequence[str]) -> Words:
    return Words(argv=(*head, "-n", str(size), *ranks), size_at=len(head) + 1)


def hostfile(flavour: str, hosts: Iterable[tuple[str, int]]) -> str:
    """`hosts`: (address, number of ranks), in the order of their ranks."""
    line = HOST_LINES[flavour]
    return "".join(line.format(address=host, ranks=ranks) + "\n" for host, ranks in hosts)
