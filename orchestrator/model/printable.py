"""Text that others wrote, as one printable line; what has more lines goes to screen.harmless."""

from __future__ import annotations


def one_line(text: str) -> str:
    """With all that is no letter, line breaks too: for a line of a file, a comment or a table."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else shown(letter) for letter in text)


def shown(letter: str) -> str:
    """As in Python's own escapes: \\x1b, \\n."""
    return letter.encode("unicode_escape", "surrogatepass").decode()
