"""Remove the symbols that only debuggers read from shared libraries: `python3 symbols.py FOLDER`.

`strip` is no alternative: Python's own images do not have it, and version 2.40 of Debian bookworm breaks libraries that
auditwheel has changed, such as numpy's OpenBLAS ("ELF load command address/offset not page-aligned"). This program does
not change anything that is loaded into memory; dynamic symbols, by which libraries are linked and named in traces,
stay. Numbers are those of ELF-64: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import BinaryIO, NamedTuple

LITTLE_ENDIAN_64 = b"\x7fELF\x02\x01"
HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")
SEGMENT_TABLE, SECTION_TABLE, SEGMENT_COUNT, SECTION_COUNT = 4, 5, 9, 11  # fields of the header
SHT_NULL, SHT_SYMTAB, SHT_NOBITS = 0, 2, 8
SHF_ALLOC = 2


class Section(NamedTuple):
    """An entry of the section table."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int

    @property
    def in_file_only(self) -> bool:
        """Return whether the section is not loaded into memory."""
        return self.type != SHT_NULL and not self.flags & SHF_ALLOC


def main(folder: Path) -> None:
    """Strip all libraries in a folder."""
    for path in folder.rglob("*.so*"):
        if path.is_file() and not path.is_symlink():
            strip(path)


def strip(path: Path) -> int:
    """Strip a library and return the number of bytes that were removed.

    Other files are not opened for writing, because the layer of an image would then contain them again. A library with
    loaded sections behind others, as tools that change libraries may write it, stays as it is.
    """
    with path.open("rb") as file:
        start = file.read(HEADER.size)
        if not start.startswith(LITTLE_ENDIAN_64) or len(start) < HEADER.size:
            return 0
        header = list(HEADER.unpack(start))
        sections = [Section(*row) for row in read_table(file, SECTION, header[SECTION_TABLE], header[SECTION_COUNT])]
        segments = read_table(file, SEGMENT, header[SEGMENT_TABLE], header[SEGMENT_COUNT])
        loaded_end = max([offset + size for _, _, offset, _, _, size, _, _ in segments] + [0])
        removed = symbol_sections(sections)
        unloaded_start = min([header[SECTION_TABLE], *(s.offset for s in sections if s.in_file_only)])
        if not removed or loaded_end > unloaded_start:
            return 0
        header[SECTION_TABLE], tail = make_tail(file, sections, removed, loaded_end)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(start[:16] + HEADER.pack(*header)[16:])
        file.seek(loaded_end)
        file.write(tail)
        file.truncate()
    return size - path.stat().st_size


def read_table(file: BinaryIO, row: struct.Struct, offset: int, count: int) -> list[tuple[int, ...]]:
    """Return the rows of a table in the file."""
    file.seek(offset)
    return list(row.iter_unpack(file.read(row.size * count)))


def symbol_sections(sections: list[Section]) -> set[int]:
    """Return the indexes of the symbol tables that are not loaded, and of the sections with their names."""
    tables = [i for i, section in enumerate(sections) if section.type == SHT_SYMTAB and section.in_file_only]
    return {*tables, *(sections[i].link for i in tables)}


def make_tail(file: BinaryIO, sections: list[Section], removed: set[int], start: int) -> tuple[int, bytes]:
    """Return the offset of the new section table, and the end of the file from `start` on.

    A removed section keeps its index, because other sections refer to each other by index.
    """
    content, table = b"", b""
    for i, section in enumerate(sections):
        if i not in removed and section.in_file_only and section.type != SHT_NOBITS:
            content += padding(start + len(content), section.align)
            file.seek(section.offset)
            data = file.read(section.size)
            section = section._replace(offset=start + len(content))
            content += data
        table += bytes(SECTION.size) if i in removed else SECTION.pack(*section)
    content += padding(start + len(content), 8)
    return start + len(content), content + table


def padding(offset: int, align: int) -> bytes:
    """Return the bytes between an offset and the next multiple of `align`."""
    return bytes(-offset % max(align, 1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
