"""A wheelhouse without what no node needs: tests, static libraries, offloading to GPUs.

The same list as for images. The published wheels stay beside it, as their index has them; what is
left of one keeps its name, gets a RECORD and a hash of its own, and is not compressed anew.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from orch_node.standalone.slim import TESTS, UNUSED

from orchestrator.errors import ExecuteError
from orchestrator.files import link_or_copy, sha256, write_whole
from orchestrator.provisioning.wheelhouse import LOCK, Wheel, Wheelhouse, alone, read

FORMAT = 1
SCRATCH = ".slim-"
HEADER = 30  # bytes of a file's own header in a zip, before its name
DESCRIBED_BEHIND = 0x08  # flag of a zip: sizes follow the content


def slimmed(house: Wheelhouse) -> Wheelhouse:
    """The smaller wheelhouse, made if it is not there yet. Raises ExecuteError."""
    folder = house.folder / f"slim-{identity(house)}"
    with alone(house.folder.name):
        try:
            return read(folder) or make(folder, house)
        except OSError as error:
            raise ExecuteError(
                f"{house.folder} cannot be filled: {error.strerror}.",
                hint="Free some room there, or name another folder by XDG_CACHE_HOME.",
            ) from None


def identity(house: Wheelhouse) -> str:
    """Differs with the wheels and with what is left out of them."""
    whole = [FORMAT, TESTS, UNUSED, [wheel.sha256 for wheel in house.wheels]]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:12]


def make(folder: Path, house: Wheelhouse) -> Wheelhouse:
    for old in (*house.folder.glob(f"{SCRATCH}*"), *house.folder.glob("slim-*")):
        shutil.rmtree(old)
    new = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=house.folder))
    wheels = tuple(slim(house.folder, wheel, new) for wheel in house.wheels)
    write_whole(new / LOCK, json.dumps([asdict(wheel) for wheel in wheels], indent=1) + "\n")
    new.replace(folder)
    return Wheelhouse(folder=folder, wheels=wheels)


def slim(source: Path, wheel: Wheel, folder: Path) -> Wheel:
    """What nodes get of one wheel: where all of it is needed, the same file."""
    target = folder / wheel.file
    check(source, wheel)
    with zipfile.ZipFile(source / wheel.file) as archive:
        unused = {name for name in archive.namelist() if is_unused(name)}
    if not unused:
        link_or_copy(source / wheel.file, target)
        return wheel
    with (source / wheel.file).open("rb") as published, target.open("wb") as slimmer:
        write_without(unused, published, slimmer)
    return replace(wheel, sha256=sha256(target), size=target.stat().st_size)


def check(source: Path, wheel: Wheel) -> None:
    """What is left of a damaged one would get a hash that fits, and no node would notice."""
    if sha256(source / wheel.file) != wheel.sha256:
        raise ExecuteError(
            f"{wheel.file} is damaged: it has not the hash that it was locked with.",
            hint=f"Remove {source}, and run it again: it is fetched anew.",
        )


def is_unused(name: str) -> bool:
    """Whether slim.py would take this file of a wheel out of an image."""
    path = PurePosixPath(name)
    first = path.parts[0]
    if first.endswith(".dist-info"):
        return False
    beside = first.endswith(".data") and not {*path.parts[1:2]} <= {"purelib", "platlib"}
    tests = not beside and not set(TESTS).isdisjoint(path.parts[:-1])
    return tests or any(path.match(pattern) for pattern in UNUSED)


def write_without(unused: set[str], published: BinaryIO, slimmer: BinaryIO) -> None:
    """All else of a wheel as it is compressed there, and a RECORD of that, last."""
    with zipfile.ZipFile(published) as archive, zipfile.ZipFile(slimmer, "w") as target:
        (record,) = filter(is_record, archive.namelist())
        for info in archive.infolist():
            if info.filename != record and info.filename not in unused:
                content = compressed(info, published)
                append(described(info), content, target, slimmer)
        rows = archive.read(record).decode().splitlines()
        target.writestr(record, without(rows, unused), zipfile.ZIP_DEFLATED)


def is_record(name: str) -> bool:
    path = PurePosixPath(name)
    return path.name == "RECORD" and path.parent.name.endswith(".dist-info") and len(path.parts) == 2


def without(rows: Iterable[str], unused: set[str]) -> str:
    text = io.StringIO()
    kept = (row for row in csv.reader(rows) if row and row[0] not in unused)
    csv.writer(text, lineterminator="\n").writerows(kept)
    return text.getvalue()


# zipfile itself could only compress anew. Where the parts of a zip are:
# https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3


def compressed(info: zipfile.ZipInfo, published: BinaryIO) -> bytes:
    published.seek(info.header_offset)
    header = published.read(HEADER)
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    published.seek(name + extra, os.SEEK_CUR)
    return published.read(info.compress_size)


def described(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """The same file, wherever it will stand; its sizes come before its content."""
    entry = zipfile.ZipInfo(info.filename, info.date_time)
    for name in ("compress_type", "external_attr", "create_system", "CRC", "compress_size"):
        setattr(entry, name, getattr(info, name))
    entry.file_size, entry.flag_bits = info.file_size, info.flag_bits & ~DESCRIBED_BEHIND
    return entry


def append(entry: zipfile.ZipInfo, content: bytes, target: zipfile.ZipFile, slimmer: BinaryIO) -> None:
    entry.header_offset = slimmer.tell()
    slimmer.write(entry.FileHeader() + content)
    target.filelist.append(entry)
    target.NameToInfo[entry.filename] = entry
    target.start_dir = slimmer.tell()
