"""Text that others wrote, as it may be printed: what a terminal would obey is shown instead."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with its lines; tabs and all other control characters become visible."""
    return "\n".join(map(one_line, text.split("\n")))


def one_line(text: str) -> str:
    """The same, and line breaks are shown too: for a line of a file, a comment or a table."""
    return "".join(letter if letter.isprintable() else shown(letter) for letter in text)


def shown(letter: str) -> str:
    """As in Python's own escapes: \\x1b, \\n."""
    return letter.encode("unicode_escape", "surrogatepass").decode()
