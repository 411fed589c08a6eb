"""What Python would compile on every node, compiled here once: a package of .pyc files.

The first import of torch costs a node 6 to 10 seconds of a core, and each of the ranks that begin
together compiles for itself. The package is installed like any other and holds nothing but
`__pycache__` folders. Python takes a .pyc file whose source has the time and size that it names
(https://docs.python.org/3/reference/import.html#cached-bytecode-invalidation), so the module
`orch_stack` gives the sources this time, and who edits one on a node has it compiled again.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib.util import cache_from_source
from pathlib import Path, PurePosixPath

NAME = "orch-bytecode"
# Of all sources: the earliest that a zip file can state. orch_stack.py has it too.
SOURCE_TIME = 315_532_800  # 1980-01-01
# Never imported by a run.
TESTS = frozenset({"test", "tests", "testing"})
# One in hundreds of transformers' architectures is used, and together they are a third of all.
MODELS = ("transformers", "models")
USED_MODELS = frozenset({"__init__.py", "auto", "bert"})
INSTALLED = ("purelib", "platlib")
SCRATCH = ".bytecode-"


def can_compile(python: str) -> bool:
    """Whether this interpreter writes what a CPython of that version ("3.11") reads."""
    ours = "{}.{}".format(*sys.version_info[:2])
    return sys.implementation.name == "cpython" and ours == python


def write_bytecode(folder: Path, wheels: Iterable[Path], identity: str) -> Path:
    """A wheel in `folder` with the bytecode of these wheels' modules, for this Python.

    `identity`: hexadecimal, of what the wheels are; part of the version.
    """
    for old in folder.glob("orch_bytecode-*.whl"):
        old.unlink()
    for left in folder.glob(f"{SCRATCH}*"):  # by one that was killed
        shutil.rmtree(left)
    version = f"1+{identity}"
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}-none-any"
    target = folder / f"orch_bytecode-{version}-{tag}.whl"
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as name:
        sources = Path(name)
        for wheel in wheels:
            extract_modules(wheel, sources)
        compile_all(sources)
        write_wheel(target, sources, version, tag)
    return target


def extract_modules(wheel: Path, folder: Path) -> None:
    """The modules of a wheel, where site-packages will have them, with the time they will have."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = module_path(info.filename)
            if path is None:
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(info))
            os.utime(target, (SOURCE_TIME, SOURCE_TIME))


def module_path(name: str) -> PurePosixPath | None:
    """Where in site-packages a wheel's file becomes a module that a run may import."""
    parts = PurePosixPath(name).parts
    if parts[0].endswith(".data"):
        if len(parts) < 2 or parts[1] not in INSTALLED:  # some wheels list their folders
            return None
        parts = parts[2:]
    if not name.endswith(".py") or TESTS & set(parts) or ".." in parts or parts[0] == "/":
        return None
    if parts[:2] == MODELS and parts[2] not in USED_MODELS:
        return None
    return PurePosixPath(*parts)


def compile_all(folder: Path) -> None:
    """By all cores. What is no Python of this version has no bytecode, as without us."""
    command = [sys.executable, "-I", "-m", "compileall", "-qq", "-j", "0", "-s", str(folder)]
    modes = ["--invalidation-mode", "timestamp"]
    subprocess.run([*command, *modes, str(folder)], stdin=subprocess.DEVNULL, check=False)


def write_wheel(target: Path, sources: Path, version: str, tag: str) -> None:
    """https://packaging.python.org/en/latest/specifications/binary-distribution-format/"""
    info = f"orch_bytecode-{version}.dist-info"
    described = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
    kind = f"Wheel-Version: 1.0\nGenerator: orch\nRoot-Is-Purelib: true\nTag: {tag}\n"
    rows: list[tuple[str, str, str]] = []
    new = target.with_name(f"{target.name}.new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, content: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
            rows.append((name, record_digest(content), str(len(content))))

        for path in compiled(sources):
            add(str(path.relative_to(sources)), path.read_bytes())
        add(f"{info}/METADATA", described.encode())
        add(f"{info}/WHEEL", kind.encode())
        archive.writestr(f"{info}/RECORD", record([*rows, (f"{info}/RECORD", "", "")]))
    new.replace(target)


def compiled(sources: Path) -> Iterator[Path]:
    for source in sorted(sources.rglob("*.py")):
        path = Path(cache_from_source(str(source)))
        if path.exists():
            yield path


def record_digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


def record(rows: list[tuple[str, str, str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
