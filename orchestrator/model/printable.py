"""Text for a single line: external text, and numbers with their nouns."""

from __future__ import annotations


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
