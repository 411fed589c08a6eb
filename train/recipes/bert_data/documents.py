"""Read documents in blocks: pieces of files, as work that does not depend on the number of ranks.

A document belongs to the block in which it begins and is read to its end. Files are text, or Wikipedia dumps:
pages-articles.xml or .xml.bz2, preferably multistream. Several ranks read a bz2 file of several streams at once: a
stream can be found by its first bytes and read alone. A file with a single stream belongs to the first block.
"""

from __future__ import annotations

import bz2
import contextlib
import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from orch_training import RecipeError

GAP = b"\n\n"
BEGIN = re.compile(rb"\A|\n\n+")  # what precedes a document
PIECE = 1 << 20
# https://en.wikipedia.org/wiki/Bzip2: "BZh", the level, and pi as the mark of a first block.
STREAM, MARK_BYTES = re.compile(rb"BZh[1-9]1AY&SY"), 10
OPEN, CLOSE = b"<page>", b"</page>"
NOT_TEXT = ("ref", "gallery", "math", "table", "timeline", "score", "imagemap", "syntaxhighlight")
NOT_LINKS = re.compile(r"^\s*:?(file|image|category|[a-z-]{2,12}):", re.IGNORECASE)


class Block(NamedTuple):
    """The bytes of a file from `start` up to, but not including, `end`."""

    file: Path
    start: int
    end: int


def blocks_of(files: Sequence[Path], size: int) -> list[Block]:
    """Divide files into blocks of at most `size` bytes."""
    ends = [(file, file.stat().st_size) for file in files]
    return [Block(file, start, min(start + size, end)) for file, end in ends for start in range(0, end, size)]


def text_documents(block: Block) -> Iterator[str]:
    """Yield the documents that begin in a block; blank lines separate documents.

    Raises:
        RecipeError: if the block is not UTF-8 text, or has Windows line endings.
    """
    with mapped(block.file) as content:
        check_text(block, content)
        for match in BEGIN.finditer(content, max(0, block.start - len(GAP)), block.end):
            if block.start <= match.end() < block.end:
                end = content.find(GAP, match.end())
                data = content[match.end() : end if end >= 0 else len(content)]
                if text := decode(block.file, match.end(), data).strip():
                    yield text


def check_text(block: Block, content: mmap.mmap) -> None:
    """Check a block before its documents are read: without blank lines, all of a file would be one.

    Raises:
        RecipeError: if it has Windows line endings, or NULs, as UTF-16 and binary files do.
    """
    if content.find(b"\r\n", block.start, block.end) >= 0:
        hint = "Convert it to LF first: `dos2unix FILE`."
        raise RecipeError(f"{block.file} has Windows line endings (CRLF). {hint}")
    if (position := content.find(b"\0", block.start, block.end)) >= 0:
        raise RecipeError(f"{block.file} is not UTF-8 text: byte {position}: a NUL.")


def decode(file: Path, start: int, data: bytes) -> str:
    """Return a document that begins at byte `start` of a file as text.

    Raises:
        RecipeError: if it is not UTF-8 text.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file} is not UTF-8 text: byte {start + error.start}: {error.reason}.") from error


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def wikipedia_documents(block: Block, min_chars: int) -> Iterator[str]:
    """Yield the text of each article in a block with at least `min_chars` characters."""
    for page in pages(block):
        text = article(page)
        if text is not None and len(plain := plain_text(text)) >= min_chars:
            yield plain


def plain_chunks(block: Block) -> Iterator[tuple[bool, bytes]]:
    """Yield the bytes from the start of a block to the end of its file.

    Each chunk is preceded by whether it lies in the block.
    """
    with block.file.open("rb") as file:
        file.seek(position := block.start)
        while data := file.read(min(PIECE, block.end - position) if position < block.end else PIECE):
            yield position < block.end, data
            position += len(data)


def bz2_chunks(block: Block) -> Iterator[tuple[bool, bytes]]:
    """Yield decompressed bytes like plain_chunks; a stream lies in the block in which it begins."""
    with mapped(block.file) as content:
        match = STREAM.search(content, block.start, block.end + MARK_BYTES - 1)
    if match is None:
        return
    with block.file.open("rb") as file:
        file.seek(stream_start := match.start())
        decompressor = bz2.BZ2Decompressor()
        while data := file.read(PIECE):
            while data:
                try:
                    decompressed = decompressor.decompress(data)
                except OSError as error:
                    raise RecipeError(f"{block.file} is damaged: {error} at byte {file.tell() - len(data)}.") from error
                yield stream_start < block.end, decompressed
                data = decompressor.unused_data
                if decompressor.eof:
                    stream_start = file.tell() - len(data)
                    decompressor = bz2.BZ2Decompressor()
        if stream_start < file.tell():
            raise RecipeError(f"{block.file} is cut off: the stream that begins at byte {stream_start} has no end.")


def pages(block: Block) -> Iterator[bytes]:
    """Yield each page that begins in the block as a whole.

    Raises:
        RecipeError: if the file ends in a page.
    """
    buffer = b""
    for inside, data in bz2_chunks(block) if block.file.suffix == ".bz2" else plain_chunks(block):
        # A page has begun but not ended, or its opening tag is cut in two.
        has_begun = OPEN in buffer or any(buffer.endswith(OPEN[:size]) for size in range(1, len(OPEN)))
        if not inside and not has_begun:
            return
        *ended, buffer = (buffer + data).split(CLOSE)
        for text in ended if inside else ended[:1]:
            if OPEN in text:
                yield text[text.index(OPEN) :] + CLOSE
        if ended and not inside:
            return
    if OPEN in buffer:
        raise RecipeError(f"{block.file} is cut off: its last page has no end.")


def article(page: bytes) -> str | None:
    """Return the wiki text of an article, or None for redirects, talk and other pages."""
    tree = ElementTree.fromstring(page)  # noqa: S314
    if tree.findtext("ns") != "0" or tree.find("redirect") is not None:
        return None
    return tree.findtext("revision/text")


def plain_text(wiki: str) -> str:
    """Return the paragraphs without markup, one per line; headings and lists are dropped.

    Raises:
        RecipeError: if the parser of wiki markup is not installed.
    """
    try:
        import mwparserfromhell
    except ImportError as error:
        raise RecipeError("a dump needs the package `mwparserfromhell`; it is in the stack `current`.") from error
    code = mwparserfromhell.parse(wiki)
    tags = code.filter_tags(matches=lambda tag: str(tag.tag).lower() in NOT_TEXT)
    links = code.filter_wikilinks(matches=lambda link: NOT_LINKS.match(str(link.title)))
    for node in (*tags, *links):
        with contextlib.suppress(ValueError):  # it was part of a node that is already removed
            code.remove(node)
    lines = (" ".join(line.split()) for line in str(code.strip_code()).splitlines())
    return "\n".join(line for line in lines if line.endswith((".", "!", "?", '"', ")")))
