"""Takes from shared libraries the symbols that only debuggers read: `python3 symbols.py FOLDER`.

Python's own images have no `strip`. What is loaded stays as it is, with the dynamic symbols, by
which libraries find each other, are linked, and are named in traces. Numbers are those of ELF-64:
https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
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
NOTHING, SYMBOLS, UNWRITTEN = 0, 2, 8  # SHT_NULL, SHT_SYMTAB, SHT_NOBITS
LOADED = 2  # SHF_ALLOC


class Section(NamedTuple):
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


def main(folder: Path) -> None:
    for path in folder.rglob("*.so*"):
        if path.is_file() and not path.is_symlink():
            strip(path)


def strip(path: Path) -> int:
    """-> bytes that the file has become smaller by. What is no such library is left alone, and not
    even opened to be written: a layer of an image would have it again."""
    with path.open("rb") as file:
        first = file.read(HEADER.size)
        if not first.startswith(LITTLE_ENDIAN_64) or len(first) < HEADER.size:
            return 0
        header = list(HEADER.unpack(first))
        sections = [Section(*one) for one in rows(file, SECTION, header[5], header[11])]
        end = end_of_loaded(file, header)
        gone = symbols_of(sections)
        if not gone or end > min([header[5], *map(begin, sections)]):
            return 0
        table, tail = tail_without(file, sections, gone, end)
    before = path.stat().st_size
    header[5] = table
    with path.open("r+b") as file:
        file.write(first[:16] + HEADER.pack(*header)[16:])
        file.seek(end)
        file.write(tail)
        file.truncate()
    return before - path.stat().st_size


def end_of_loaded(file: BinaryIO, header: list[int]) -> int:
    found = rows(file, SEGMENT, header[4], header[9])
    return max([start + size for _, _, start, _, _, size, _, _ in found] + [0])


def begin(section: Section) -> int:
    """Where it does, if it is not loaded. Tools that change libraries may put what is loaded behind
    that: those libraries stay as they are."""
    unloaded = section.type != NOTHING and not section.flags & LOADED
    return section.offset if unloaded else sys.maxsize


def rows(file: BinaryIO, form: struct.Struct, start: int, count: int) -> list[tuple[int, ...]]:
    file.seek(start)
    return list(form.iter_unpack(file.read(form.size * count)))


def symbols_of(sections: list[Section]) -> set[int]:
    """The numbers of the symbol tables that are not loaded, and of their names."""
    tables = [number for number, one in enumerate(sections) if one.type == SYMBOLS and not one.flags & LOADED]
    return {*tables, *(sections[number].link for number in tables)}


def tail_without(file: BinaryIO, sections: list[Section], gone: set[int], end: int) -> tuple[int, bytes]:
    """What is not loaded, without the symbols, and the table of sections, which begins at (...).

    A section that is gone keeps its number, as others are known by theirs.
    """
    tail, table = b"", b""
    for number, section in enumerate(sections):
        if number not in gone and begin(section) != sys.maxsize and section.type != UNWRITTEN:
            tail += padding(end + len(tail), section.align)
            file.seek(section.offset)
            content = file.read(section.size)
            section = section._replace(offset=end + len(tail))
            tail += content
        table += bytes(SECTION.size) if number in gone else SECTION.pack(*section)
    tail += padding(end + len(tail), 8)
    return end + len(tail), tail + table


def padding(at: int, align: int) -> bytes:
    return bytes(-at % max(align, 1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
