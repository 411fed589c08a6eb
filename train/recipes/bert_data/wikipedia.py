"""Articles of a Wikipedia dump: pages-articles.xml, or .xml.bz2, best the multistream one.

A bz2 file of several streams is read by several ranks at once: a stream can be found by its first
bytes and read alone. One of a single stream is all in the first block.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.etree import ElementTree  # nosec B405

from blocks import PIECE, Block
from orch_training.errors import RecipeError

# https://en.wikipedia.org/wiki/Bzip2: "BZh", the level, and pi as the mark of a first block.
STREAM = re.compile(rb"BZh[1-9]1AY&SY")
OPEN, CLOSE = b"<page>", b"</page>"
NOT_TEXT = ("ref", "gallery", "math", "table", "timeline", "score", "imagemap", "syntaxhighlight")
NOT_LINKS = re.compile(r"^\s*:?(file|image|category|[a-z-]{2,12}):", re.IGNORECASE)


def wikipedia_documents(block: Block, min_chars: int) -> Iterator[str]:
    chunks = bz2_chunks(block) if block.file.suffix == ".bz2" else plain_chunks(block)
    for page in pages(chunks):
        text = article(page)
        if text is not None and len(plain := plain_text(text)) >= min_chars:
            yield plain


def plain_chunks(block: Block) -> Iterator[tuple[bool, bytes]]:
    """(whether it lies in the block, bytes); goes on after the block's end."""
    with block.file.open("rb") as file:
        file.seek(block.start)
        left = block.end - block.start
        while left > 0 and (data := file.read(min(PIECE, left))):
            left -= len(data)
            yield True, data
        while data := file.read(PIECE):
            yield False, data


def bz2_chunks(block: Block) -> Iterator[tuple[bool, bytes]]:
    """As plain_chunks; a stream lies in the block in which it begins."""
    with block.file.open("rb") as file:
        start = next_stream(file, block.start, block.end)
        if start is None:
            return
        file.seek(start)
        begins, rest = start, b""
        while True:
            machine = bz2.BZ2Decompressor()
            while not machine.eof:
                data = rest or file.read(PIECE)
                rest = b""
                if not data:
                    return
                yield begins < block.end, machine.decompress(data)
            rest = machine.unused_data or file.read(PIECE)
            begins = file.tell() - len(rest)
            if not rest:
                return


def next_stream(file: BinaryIO, start: int, end: int) -> int | None:
    """Where the first stream in [start, end) begins."""
    overlap = 9  # bytes of a mark that may lie in the piece before
    position = start
    while position < end:
        file.seek(position)
        data = file.read(PIECE + overlap)
        if match := STREAM.search(data):
            found = position + match.start()
            return found if found < end else None
        if not data:
            return None
        position += PIECE
    return None


def pages(chunks: Iterator[tuple[bool, bytes]]) -> Iterator[bytes]:
    """The pages that begin in the block, each whole."""
    buffer = b""
    for inside, data in chunks:
        if not inside and not begun(buffer):
            return
        buffer += data
        while (end := buffer.find(CLOSE)) >= 0 and (at := buffer.find(OPEN)) >= 0:
            if at > end:  # the end of a page that began in the block before
                buffer = buffer[at:]
                continue
            yield buffer[at : end + len(CLOSE)]
            buffer = buffer[end + len(CLOSE) :]
            if not inside:
                return
        if OPEN not in buffer:
            buffer = buffer[-len(OPEN) :]


def begun(buffer: bytes) -> bool:
    """A page has begun and not ended, or its very tag is cut in two."""
    return OPEN in buffer or any(buffer.endswith(OPEN[:n]) for n in range(1, len(OPEN)))


def article(page: bytes) -> str | None:
    """The wiki text of an article; None for redirects, talk and other pages."""
    tree = ElementTree.fromstring(page)  # nosec B314
    if tree.findtext("ns") != "0" or tree.find("redirect") is not None:
        return None
    return tree.findtext("revision/text")


def plain_text(wiki: str) -> str:
    """Paragraphs without markup, one to a line; headings and lists go."""
    parser = markup_parser()
    code = parser.parse(wiki)
    for tag in code.filter_tags(matches=lambda tag: str(tag.tag).lower() in NOT_TEXT):
        drop(code, tag)
    for link in code.filter_wikilinks(matches=lambda link: NOT_LINKS.match(str(link.title))):
        drop(code, link)
    lines = (" ".join(line.split()) for line in str(code.strip_code()).splitlines())
    return "\n".join(line for line in lines if line.endswith((".", "!", "?", '"', ")")))


def drop(code: Any, node: Any) -> None:
    try:
        code.remove(node)
    except ValueError:  # it lay in another node that is gone already
        pass


def markup_parser() -> Any:
    try:
        import mwparserfromhell
    except ImportError as error:
        raise RecipeError("a dump needs the package `mwparserfromhell`; it is in the stack `current`.") from error
    return mwparserfromhell
