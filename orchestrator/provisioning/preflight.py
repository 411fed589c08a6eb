"""Probes -> what stands in the way of provisioning. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.model.limits import GIB, Limits
from orchestrator.provisioning.probe import Probe
from orchestrator.stacks.stack import Stack

# What the launchers of MPI, and the shell behind ssh, do not take as a part of a path.
BREAKING = frozenset(" \t\n:;&|<>()$`\\\"'*?[]{}#~!")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with a node, and what to do about it."""

    node: str
    text: str
    hint: str = ""


# Debian's package, and Red Hat's, of each program or library that the probe looks for.
PACKAGES = {
    "ssh": ("openssh-client", "openssh-clients"),
    "dockerd": ("docker.io", "moby-engine"),
    "libhwloc.so.15": ("libhwloc15", "hwloc-libs"),
    "libtcmalloc_minimal.so.4": ("libtcmalloc-minimal4", "gperftools-libs"),
    "libibverbs.so.1": ("libibverbs1", "libibverbs"),
    "librdmacm.so.1": ("librdmacm1", "librdmacm"),
    "libmlx5.so.1": ("ibverbs-providers", "libibverbs"),  # all devices' drivers, EFA's too
}


def packages(probe: Probe) -> tuple[str, ...]:
    """The system packages that this node lacks, as its own distribution names them."""
    column = 0 if probe.family == "debian" else 1
    return tuple(PACKAGES[name][column] for name in probe.missing)


def problems(
    probes: tuple[Probe, ...], stack: Stack, *, limits: Mapping[str, Limits], becoming: Collection[str]
) -> tuple[Problem, ...]:
    """All that is wrong with all nodes, alone and in pairs.

    `becoming`: nodes for which there is a sudo password.
    """
    found = [
        problem
        for probe in probes
        for problem in (
            *of_machine(probe, limits[probe.name]),
            *of_python(probe, stack),
            *of_rights(probe, may_become=probe.name in becoming),
            *of_root(probe),
        )
    ]
    if len({probe.root for probe in probes}) > 1:
        found += [different_roots(probe) for probe in probes]
    return (*found, *of_pairs(probes, becoming))


def of_machine(probe: Probe, limits: Limits) -> Iterator[Problem]:
    facts = probe.facts
    installed = bool(facts["packages"])
    if probe.disk_free < (limits.disk // 5 if installed else limits.disk):
        least = limits.disk / GIB / (5 if installed else 1)
        yield Problem(
            node=probe.name,
            text=f"{probe.disk_free / GIB:.1f} GiB free for {probe.root}, needs {least:.1f}",
            hint="Free some disk space, or set orch_root to a folder on a larger disk. "
            "orch_limits: {disk_gb: ...} sets what is asked for.",
        )
    if facts["memory_bytes"] < limits.memory:
        least = limits.memory / GIB
        yield Problem(
            node=probe.name,
            text=f"{facts['memory_bytes'] / GIB:.1f} GiB of memory, needs {least:.1f}",
            hint="orch_limits: {memory_gb: ...} in the inventory sets what is asked for.",
        )
    if facts["shm_bytes"] < limits.shm:
        yield Problem(
            node=probe.name,
            text=f"{facts['shm_bytes'] >> 20} MiB free in /dev/shm, needs {limits.shm >> 20}",
            hint="mount -o remount,size=1g /dev/shm; for a container: --shm-size 1g.",
        )
    if not probe.libc:
        yield Problem(node=probe.name, text="its C library is not glibc, which the wheels need")
    if "avx2" not in facts["flags"]:
        yield Problem(node=probe.name, text=f"its CPU ({facts['cpu_model']}) has no AVX2")
    if abs(probe.skew) > limits.skew:
        yield Problem(
            node=probe.name,
            text=f"its clock is {probe.skew:+.0f} s off this machine's",
            hint="Start a time service there (chrony or systemd-timesyncd).",
        )


def of_python(probe: Probe, stack: Stack) -> Iterator[Problem]:
    version = ".".join(map(str, probe.python))
    if not stack.runs_on_python(version):
        yield Problem(
            node=probe.name,
            text=f"Python {version} at {probe.python_path}; stack '{stack.name}' needs {stack.python}",
            hint="Set ansible_python_interpreter to another Python of that node, or take another --stack.",
        )


def of_rights(probe: Probe, *, may_become: bool) -> Iterator[Problem]:
    if probe.missing and not (probe.sudo or may_become):
        names = " ".join(packages(probe))
        tool = "apt-get" if probe.family == "debian" else "dnf"
        yield Problem(
            node=probe.name,
            text=f"lacks {', '.join(probe.missing)}, and {probe.user} may not install them",
            hint=f"Ask an administrator for: {tool} install {names}. Or give the sudo password: --ask-become-pass.",
        )
    if not probe.writable:
        yield Problem(
            node=probe.name,
            text=f"{probe.user} cannot write {probe.root}",
            hint="Set orch_root in the inventory to a folder that belongs to this user.",
        )


def of_root(probe: Probe) -> Iterator[Problem]:
    """mpiexec hands the paths of its proxy and of ssh's configuration on in one string."""
    if found := sorted(BREAKING & set(probe.root)):
        yield Problem(
            node=probe.name,
            text=f"its folder {probe.root} has {' '.join(map(repr, found))} in its name, where "
            "MPI's launchers take a path apart",
            hint="Set orch_root in the inventory to a folder without such letters.",
        )


def of_shared(probe: Probe, stack: Stack) -> Iterator[Problem]:
    """Of a host that only fills a folder which others see: it trains nothing itself."""
    if not probe.libc:
        yield Problem(node=probe.name, text="its C library is not glibc, which the wheels need")
    yield from of_python(probe, stack)
    yield from of_root(probe)
    if not probe.writable:
        yield Problem(node=probe.name, text=f"{probe.user} cannot write {probe.root}")


def different_roots(probe: Probe) -> Problem:
    return Problem(
        node=probe.name,
        text=f"its folder would be {probe.root}, which differs between the nodes",
        hint="Set orch_root in the inventory: one absolute path for all nodes.",
    )


def of_pairs(probes: tuple[Probe, ...], becoming: Collection[str]) -> Iterator[Problem]:
    alive = {probe.name for probe in probes}
    for probe in probes:
        for name, peer in probe.peers.items():
            if name not in alive:
                continue
            if peer.error:
                yield Problem(
                    node=probe.name,
                    text=f"{probe.name} cannot reach {name} ({peer.address or 'no address'}): {peer.error}",
                    hint="Open the SSH port between the nodes, or set orch_address to the address "
                    "that the other nodes reach.",
                )
            elif is_loopback(peer.address) and len(alive) > 1:
                yield Problem(
                    node=probe.name,
                    text=f"{probe.name} reaches {name} at the loopback address {peer.address}",
                    hint="Set orch_address in the inventory to the node's address on the network.",
                )
            elif not (probe.sudo or probe.name in becoming):
                yield from of_names(probe.name, name, peer.address, peer.resolves)


def of_names(node: str, name: str, address: str, resolves: tuple[str, ...]) -> Iterator[Problem]:
    """Where nobody may write /etc/hosts, the names must be right already."""
    if address in resolves and not any(is_loopback(found) for found in resolves):
        return
    seen = ", ".join(resolves) or "nothing"
    yield Problem(
        node=node,
        text=f"on {node} the name {name} resolves to {seen}, and should to {address}",
        hint=f"Ask an administrator to write '{address} {name}' first into its /etc/hosts.",
    )


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
