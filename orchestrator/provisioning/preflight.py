"""Problems that prevent provisioning, found in the nodes' probes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from orchestrator.load.clusters import Limits
from orchestrator.model.cluster import GIB
from orchestrator.model.decision import Finding
from orchestrator.provisioning.probe import Probe
from orchestrator.stacks.stack import Stack

# Characters that MPI's launchers and ssh's remote shell do not accept in a path.
FORBIDDEN_IN_ROOT = frozenset(" \t\n:;&|<>()$`\\\"'*?[]{}#~!")
Problem = tuple[str, str]  # what is wrong with a node, and a hint or ''


# Program or library that the probe looks for -> its package on Debian and on RHEL; "" if the node can do without it.
PACKAGES = {
    "ssh": ("openssh-client", "openssh-clients"),
    "libhwloc.so.15": ("libhwloc15", "hwloc-libs"),
    "libtcmalloc_minimal.so.4": ("libtcmalloc-minimal4", ""),
    "libibverbs.so.1": ("libibverbs1", "libibverbs"),
    "librdmacm.so.1": ("librdmacm1", "librdmacm"),
    "libmlx5.so.1": ("ibverbs-providers", "libibverbs"),  # the drivers of all devices, EFA included
}


def missing_packages(probe: Probe) -> dict[str, str]:
    """Return the programs and libraries that a node lacks, each with its package."""
    column = 0 if probe.family == "debian" else 1
    return {name: PACKAGES[name][column] for name in probe.missing if PACKAGES[name][column]}


def find_problems(
    probes: tuple[Probe, ...], stack: Stack, *, limits: Mapping[str, Limits], sudo_nodes: Collection[str]
) -> tuple[Finding, ...]:
    """Return all problems of single nodes and of connections between them.

    Args:
        probes: of all nodes that were reached.
        stack: to install.
        limits: the least resources of each node.
        sudo_nodes: nodes whose sudo password is known.
    """
    names, roots = {probe.name for probe in probes}, {probe.root for probe in probes}
    root_hint = "Set orch_root in the inventory to one absolute path for all nodes."
    return tuple(
        Finding(subject=probe.name, message=message, hint=hint)
        for probe in probes
        for message, hint in (
            *machine_problems(probe, limits[probe.name]),
            *package_problems(probe, has_password=probe.name in sudo_nodes),
            *shared_folder_problems(probe, stack),
            *[(f"its folder would be {probe.root}, which differs between the nodes", root_hint)] * (len(roots) > 1),
            *connection_problems(probe, names, may_be_root=probe.sudo or probe.name in sudo_nodes),
        )
    )


def machine_problems(probe: Probe, limits: Limits) -> Iterator[Problem]:
    """Yield problems of the hardware and the clock."""
    facts = probe.facts
    # A node with an installed stack needs space for repairs only.
    disk = limits.disk_gb * GIB / (5 if facts.packages else 1)
    if probe.disk_free < disk:
        yield (
            f"{probe.disk_free / GIB:.1f} GiB free for {probe.root}, needs {disk / GIB:.1f}",
            "Free some disk space, or set orch_root to a folder on a larger disk. "
            "orch_limits: {disk_gb: ...} in the inventory sets the required space.",
        )
    if facts.memory_bytes < limits.memory_gb * GIB:
        yield (
            f"{facts.memory_bytes / GIB:.1f} GiB of memory, needs {limits.memory_gb:.1f}",
            "orch_limits: {memory_gb: ...} in the inventory sets the required memory.",
        )
    if facts.shm_bytes < limits.shm_gb * GIB:
        yield (
            f"{facts.shm_bytes >> 20} MiB free in /dev/shm, needs {int(limits.shm_gb * 1024)}",
            "mount -o remount,size=1g /dev/shm; in a container: --shm-size 1g.",
        )
    if "avx2" not in facts.flags:
        yield f"its CPU ({facts.cpu_model}) has no AVX2", ""
    if abs(probe.skew) > limits.skew_seconds:
        yield (
            f"its clock is {probe.skew:+.0f} s off this machine's",
            "Start a time service on the node (chrony or systemd-timesyncd).",
        )


def package_problems(probe: Probe, *, has_password: bool) -> Iterator[Problem]:
    """Yield a problem if packages are missing that cannot be installed; `has_password`: of sudo."""
    packages = missing_packages(probe)
    if packages and not probe.family:
        yield (
            f"{', '.join(packages)} missing, and orch knows the packages of Debian and RHEL only",
            "Install packages that contain them.",
        )
    elif packages and not (probe.sudo or has_password):
        tool = "apt-get" if probe.family == "debian" else "dnf"
        yield (
            f"{', '.join(packages)} missing, and {probe.user} may not install packages",
            f"Ask an administrator to run: {tool} install {' '.join(packages.values())}. "
            "Or enter the sudo password: --ask-become-pass.",
        )


def shared_folder_problems(probe: Probe, stack: Stack) -> Iterator[Problem]:
    """Yield the problems of any host with its software and the folder of orch, also if it does not train."""
    if not probe.libc:
        yield "its C library is not glibc, which the wheels need", ""
    version = ".".join(map(str, probe.python))
    install = "Install another Python (dnf install python3.11), set" if probe.family == "rhel" else "Set"
    if not stack.runs_on_python(version):
        yield (
            f"Python {version} at {probe.python_path}; stack '{stack.name}' needs {stack.python}",
            f"{install} ansible_python_interpreter to another Python of the node, or use another --stack.",
        )
    hint = "Choose another folder: orch_root in the inventory, `root` of a batch system."
    if characters := sorted(FORBIDDEN_IN_ROOT & set(probe.root)):
        yield (
            f"its folder {probe.root} has {' '.join(map(repr, characters))} in its name, which "
            "MPI's launchers do not accept in a path",
            hint,
        )
    if not probe.writable:
        yield f"{probe.user} cannot write {probe.root}", hint
    if probe.noexec:
        yield f"the file system of {probe.root} is mounted with noexec, so that no program starts there", hint


def connection_problems(probe: Probe, nodes: Collection[str], *, may_be_root: bool) -> Iterator[Problem]:
    """Yield the problems of a node with the addresses and names of the others that were reached."""
    for name, peer in probe.peers.items():
        if name not in nodes:
            continue
        if peer.error:
            yield (
                f"{probe.name} cannot reach {name} ({peer.address or 'no address'}): {peer.error}",
                "Open the SSH port between the nodes, or set orch_address to the address "
                "at which the other nodes reach it.",
            )
        elif is_loopback(peer.address) and len(nodes) > 1:
            yield (
                f"{probe.name} reaches {name} at the loopback address {peer.address}",
                "Set orch_address in the inventory to the node's address on the network.",
            )
        elif not may_be_root and (peer.address not in peer.resolves or any(map(is_loopback, peer.resolves))):
            # Without root rights /etc/hosts cannot be corrected.
            yield (
                f"on {probe.name} the name {name} resolves to {', '.join(peer.resolves) or 'nothing'} "
                f"instead of {peer.address}",
                f"Ask an administrator to add '{peer.address} {name}' at the top of its /etc/hosts.",
            )


def is_loopback(address: str) -> bool:
    """Return whether packets to this address stay on the machine."""
    return address.startswith("127.") or address == "::1"
