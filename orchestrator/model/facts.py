"""The facts of a node, and the forms of the values that a node may report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Annotated, Any, Literal

from orch_node.protocol import layout
from orch_node.protocol.cores import Core, by_numa, cores_of
from orch_node.protocol.fabrics import Device, Proof
from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, PlainValidator, StringConstraints, TypeAdapter

from orchestrator.model.hosts import is_address, is_host, is_host_key, is_host_name, is_interface

MAX_LINE = 500  # characters; honest nodes send fewer
# Values of nodes have exactly the declared keys and types. They are validated as JSON.
STRICT = ConfigDict(defer_build=True, extra="forbid", strict=True, allow_inf_nan=False)


def satisfies(predicate: Callable[[str], bool], expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if not predicate(text):
            raise ValueError(f"not a valid {expected}")
        return text

    return AfterValidator(check)


HostName = Annotated[str, satisfies(is_host_name, "host name (RFC 1123)")]
Host = Annotated[str, satisfies(is_host, "host name or address")]
Address = Annotated[str, satisfies(is_address, "IP address")]
Interface = Annotated[str, satisfies(is_interface, "network interface")]
HostKey = Annotated[str, satisfies(is_host_key, "host key (type and base64)")]
Line = Annotated[str, Field(max_length=MAX_LINE), satisfies(str.isprintable, "line of printable text")]
Word = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
# Normalized by facts.py (PEP 503), so without underscores; pip may leave folders with a tilde.
Package = Annotated[str, StringConstraints(pattern=r"^[!-^`-~]{1,200}$")]
LibcVersion = Annotated[str, StringConstraints(pattern=r"^(?:[0-9]{1,3}[.][0-9]{1,3})?$")]
Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$")]
User = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+\\$-]{0,255}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{64})?$")]
NodePath = Annotated[
    str, Field(max_length=4096), StringConstraints(pattern=r"^/"), satisfies(str.isprintable, "printable path")
]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[int, Field(ge=0, lt=1 << 20)]  # the number of a CPU, core, socket or NUMA node
Text = Annotated[str, Field(max_length=1 << 24)]  # a file of the node; inspected, but not passed on

# The location of each hardware thread.
Cpus = Annotated[
    list[Annotated[dict[Literal["numa", "socket", "core", "cpu"], Number], Field(min_length=4)]], Field(min_length=1)
]
CPUS = TypeAdapter(Cpus, config=ConfigDict(defer_build=True, strict=True))
LOCATION = itemgetter("numa", "socket", "core", "cpu")


def join_threads(cpus: Any) -> tuple[Core, ...]:
    """Return the cores of hardware threads; raise ValidationError if these are invalid."""
    return cores_of(tuple(map(LOCATION, CPUS.validate_python(cpus))))


def split_cores(cores: tuple[Core, ...]) -> list[dict[str, int]]:
    """Return the hardware threads of cores."""
    return [{"cpu": cpu, "core": c.core, "socket": c.socket, "numa": c.numa} for c in cores for cpu in c.cpus]


@dataclass(frozen=True)
class ReportedDevice(Device):
    """An RDMA device, as a node reports it."""

    name: Token
    driver: Token | Literal[""]
    link: Token | Literal[""]
    interface: Interface | Literal[""]
    speed: Count
    numa: Number | None = None
    active: bool = field(kw_only=True)


@dataclass(frozen=True)
class ReportedProof(Proof):
    """The result of a fabric check, as a node reports it."""

    together: Digest
    rails: Number = 1
    gbit: Annotated[float, Field(ge=0)] = 0.0
    microseconds: Annotated[float, Field(ge=0)] = 0.0
    failed: Line = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A hardware network interface: speed in Mbit/s (0 if unknown) and its NUMA node."""

    speed: Count
    numa: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU that programs of the node's user see, as facts.py describes it; empty values are unknown."""

    index: Number  # as nvidia-smi numbers it
    vendor: Token = "nvidia"  # or amd, intel
    name: Line = ""
    uuid: Line = ""
    memory_bytes: Count = 0
    driver: Line = ""  # its version
    numa: Number | None = None  # the NUMA node that it is attached to

    def describe(self) -> str:
        memory = f" ({self.memory_bytes / 2**30:.0f} GiB)" if self.memory_bytes else ""
        return f"{self.name or f'GPU of {self.vendor}'}{memory}"


def describe_gpus(gpus: tuple[Gpu, ...]) -> str:
    """Return the number of GPUs of each kind: `8 x NVIDIA H100 80GB HBM3 (80 GiB)`."""
    return ", ".join(f"{count} x {kind}" for kind, count in Counter(gpu.describe() for gpu in gpus).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The hardware, packages and network of a node, as facts.py prints them.

    Attributes:
        machine: the architecture, such as x86_64; empty if it is unknown.
        libc: the version of glibc; empty for another C library, or if it is unknown.
        cores: the cores whose hardware threads orch may use; facts.py prints these threads as `cpus`.
        memory_bytes: main memory.
        shm_bytes: size of /dev/shm.
        libraries: the path of each library.
        packages: the version of each Python package.
        interfaces: the addresses of each network interface.
        mpi: the launcher of each MPI implementation.
        fingerprint: a hash of the installed packages.
        route: the interface of packets to the other nodes, as recorded by `orch provision`.
        detours: the interfaces of peers that are reached by another one.
        nics: the hardware network interfaces.
        devices: the RDMA devices.
        fabrics: what each fabric lacks on this node; empty if it lacks nothing.
        proved: the ping-pong result of each fabric when the node was provisioned.
    """

    __pydantic_config__ = STRICT

    schema: int = 1
    hostname: HostName
    python: Token
    machine: Token | Literal[""] = ""
    libc: LibcVersion = ""
    cpu_model: Line
    flags: Annotated[frozenset[Token], AfterValidator(layout.check_flags), PlainSerializer(sorted)]
    cores: Annotated[tuple[Core, ...], PlainValidator(join_threads), PlainSerializer(split_cores), Field(alias="cpus")]
    memory_bytes: Count
    shm_bytes: Count
    libraries: Mapping[Token, NodePath]
    interfaces: Mapping[Interface, tuple[Address, ...]]
    packages: Mapping[Package, Word]
    fingerprint: Digest = ""
    mpi: Mapping[Token, NodePath] = field(default_factory=dict)
    route: Interface | Literal[""] = ""
    detours: Mapping[HostName, Interface] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    nics: Mapping[Interface, Nic] = field(default_factory=dict)
    devices: tuple[ReportedDevice, ...] = ()
    fabrics: Mapping[Token, Line] = field(default_factory=dict)
    proved: Mapping[Token, ReportedProof] = field(default_factory=dict)

    @property
    def numa_nodes(self) -> tuple[tuple[Core, ...], ...]:
        """Return the cores of each NUMA node."""
        return by_numa(self.cores)

    @property
    def bf16(self) -> str | None:
        """Return the instruction set that makes BF16 fast on this node, or None."""
        return layout.bf16_flag(self.flags)
