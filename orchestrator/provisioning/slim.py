"""Wheels without the files that no node needs: tests, static libraries, offloading to GPUs.

The list of files is that of images (orch_node/standalone/slim.py). The published wheels stay in the wheelhouse; a
slim one has the same name, another RECORD and hash, and the compressed content of the published one.
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
from orchestrator.provisioning.wheelhouse import LOCK, Wheel, Wheelhouse, exclusive, load_wheelhouse

FORMAT = 1
SCRATCH = ".slim-"
LOCAL_HEADER_BYTES = 30  # of a zip's file header, before the name
SIZES_FOLLOW_CONTENT = 0x08  # flag of a zip's file header


def slim_wheelhouse(house: Wheelhouse) -> Wheelhouse:
    """Return a wheelhouse with slim wheels; write it if it is missing.

    Raises:
        ExecuteError: if a published wheel is damaged, or the folder cannot be written.
    """
    content = [FORMAT, TESTS, UNUSED, [wheel.sha256 for wheel in house.wheels]]
    folder = house.folder / f"slim-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]}"
    with exclusive(house.folder.name):
        try:
            return load_wheelhouse(folder) or write_wheelhouse(folder, house)
        except OSError as error:
            raise ExecuteError(
                f"{house.folder} cannot be written: {error.strerror}.",
                hint="Free some disk space, or set XDG_CACHE_HOME to a folder on a larger disk.",
            ) from None


def write_wheelhouse(folder: Path, house: Wheelhouse) -> Wheelhouse:
    """Write the slim wheels, and delete slim wheelhouses of other versions."""
    for old in (*house.folder.glob(f"{SCRATCH}*"), *house.folder.glob("slim-*")):
        shutil.rmtree(old)
    new = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=house.folder))
    wheels = tuple(slim_wheel(house.folder, wheel, new) for wheel in house.wheels)
    write_whole(new / LOCK, json.dumps([asdict(wheel) for wheel in wheels], indent=1) + "\n")
    new.replace(folder)
    return Wheelhouse(folder=folder, wheels=wheels)


def slim_wheel(source: Path, wheel: Wheel, folder: Path) -> Wheel:
    """Write the slim version of one wheel; a link to the published file if nodes need all of it."""
    target = folder / wheel.file
    # A slim wheel gets a new hash, by which no node would notice that the published one is damaged.
    if sha256(source / wheel.file) != wheel.sha256:
        raise ExecuteError(
            f"{wheel.file} is damaged: its hash differs from the lock's.",
            hint=f"Remove {source} and run the command again: it is downloaded anew.",
        )
    with zipfile.ZipFile(source / wheel.file) as archive:
        unused = {name for name in archive.namelist() if is_unused(name)}
    if not unused:
        link_or_copy(source / wheel.file, target)
        return wheel
    with (source / wheel.file).open("rb") as published, target.open("wb") as slimmer:
        write_without(unused, published, slimmer)
    return replace(wheel, sha256=sha256(target), size=target.stat().st_size)


def is_unused(name: str) -> bool:
    """Return whether orch_node/standalone/slim.py would delete this file of a wheel."""
    path = PurePosixPath(name)
    first = path.parts[0]
    if first.endswith(".dist-info"):
        return False
    outside_site_packages = first.endswith(".data") and not {*path.parts[1:2]} <= {"purelib", "platlib"}
    tests = not outside_site_packages and not set(TESTS).isdisjoint(path.parts[:-1])
    return tests or any(path.match(pattern) for pattern in UNUSED)


def write_without(unused: set[str], published: BinaryIO, slimmer: BinaryIO) -> None:
    """Copy the other files of a wheel in their compressed form, and append a RECORD of them."""
    with zipfile.ZipFile(published) as archive, zipfile.ZipFile(slimmer, "w") as target:
        # A vendored package may have a RECORD, too.
        (record,) = [
            name
            for name in archive.namelist()
            if PurePosixPath(name).match("*.dist-info/RECORD") and name.count("/") == 1
        ]
        for info in archive.infolist():
            if info.filename != record and info.filename not in unused:
                append_compressed(info, compressed_content(info, published), target, slimmer)
        rows = archive.read(record).decode().splitlines()
        target.writestr(record, record_without(rows, unused), zipfile.ZIP_DEFLATED)


def record_without(rows: Iterable[str], unused: set[str]) -> str:
    """Return the text of a RECORD without the rows of these files."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(row for row in csv.reader(rows) if row and row[0] not in unused)
    return text.getvalue()


# zipfile cannot copy compressed content, it would compress again. The layout of a zip file:
# https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3


def compressed_content(info: zipfile.ZipInfo, published: BinaryIO) -> bytes:
    """Return a file's content as it is compressed in the archive."""
    published.seek(info.header_offset)
    header = published.read(LOCAL_HEADER_BYTES)
    name, extra = (int.from_bytes(header[offset : offset + 2], "little") for offset in (26, 28))
    published.seek(name + extra, os.SEEK_CUR)
    return published.read(info.compress_size)


def append_compressed(info: zipfile.ZipInfo, content: bytes, target: zipfile.ZipFile, slimmer: BinaryIO) -> None:
    """Append a file with its compressed content to a zip file that is being written."""
    entry = zipfile.ZipInfo(info.filename, info.date_time)
    for name in ("compress_type", "external_attr", "create_system", "CRC", "compress_size"):
        setattr(entry, name, getattr(info, name))
    entry.file_size, entry.flag_bits = info.file_size, info.flag_bits & ~SIZES_FOLLOW_CONTENT
    entry.header_offset = slimmer.tell()
    slimmer.write(entry.FileHeader() + content)
    target.filelist.append(entry)
    target.NameToInfo[entry.filename] = entry
    target.start_dir = slimmer.tell()
