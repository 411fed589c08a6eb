"""External text as one printable line; for several lines see screen.harmless."""

from __future__ import annotations


def one_line(text: str) -> str:
    r"""Return the text with line breaks and other unprintable characters escaped as in Python (\\x1b, \\n)."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )
