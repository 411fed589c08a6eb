"""Text for a single line: external text, and numbers with their nouns."""

from __future__ import annotations

from collections.abc import Sequence

MAX_NAMED = 3


def one_line(text: str) -> str:
    r"""Return the text with line breaks and other unprintable characters escaped as in Python (\\x1b, \\n)."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )


def counted(number: int | str, noun: str) -> str:
    """Return a number with its noun in the singular or the plural: `1 rank`, `2 processes`."""
    plural = f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"
    return f"{number} {noun if str(number) == '1' else plural}"


def enumeration(names: Sequence[str]) -> str:
    """Return the first names and the number of the others: `a.py, b.py, c.py and 4 more`."""
    text = ", ".join(map(one_line, names[:MAX_NAMED]))
    return f"{text} and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else text


def described_size(size: int) -> str:
    """Return a number of bytes in its unit: `20 bytes`, `1.2 kB`, `3.4 MB`."""
    if size < 1000:
        return counted(size, "byte")
    return f"{size / 1e3:.1f} kB" if size < 1e6 else f"{size / 1e6:.1f} MB"
