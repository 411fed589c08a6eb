"""List all texts that orch prints: `python -m tests.support.words`.

The list has errors and their hints, decisions, warnings and help texts, with {} for values. A text is found in the
source by the function that it is an argument of. `python -m tests.support.words --unhelpful` lists the errors that do
not explain what to do.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.syntax import nodes_of

ROOT = Path(__file__).parents[2]
SOURCES = ("orchestrator", "train/lib", "train/node.py", "playbooks")
PRINTING_FUNCTIONS = """
    Decision Option Argument Typer tell say print_text print_error notify warn_once note warn warned Warned Waiting
    Stalled Stopping NodeNews NodesLost Refused KnownError Fault Limit refuse fail Finding
"""
PRINTED_CLASSES = ("Error", "UnsupportedOption", "Record", "Exit")
# A message that matches explains what to write, so it needs no hint.
EXPLAINS_FIX = re.compile(r"\bexpected |\b(is|are) ([01] or more|one of |the number of |an absolute path|a number, )")


@dataclass(frozen=True, order=True)
class Message:
    """A text of orch."""

    path: str
    line: int
    kind: str  # name of the function or class, and of the keyword, that the text is passed to; "help" for help texts
    text: str


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_shown(name: str) -> bool:
    return name in PRINTING_FUNCTIONS.split() or name.endswith(PRINTED_CLASSES)


def text_of(node: ast.expr) -> str:
    """Return the text of an expression, with {} for values; empty if it is not a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [text_of(node.left), text_of(node.right)]
        return "".join(part or "{}" for part in parts) if any(parts) else ""
    if isinstance(node, ast.IfExp):
        return " / ".join(filter(None, (text_of(node.body), text_of(node.orelse))))
    return ""


def messages_in_file(path: Path) -> Iterator[Message]:
    relative_path = path.relative_to(ROOT).as_posix()
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and is_shown(name_of(node)):
            yield from message_arguments(relative_path, node)
        if isinstance(node, ast.FunctionDef) and relative_path.startswith("orchestrator/cli"):
            docstring = ast.get_docstring(node) or ""
            yield Message(relative_path, node.lineno, "help", " ".join(docstring.split()))


def message_arguments(path: str, call: ast.Call) -> Iterator[Message]:
    """Yield the arguments of a call that are texts of more than one word."""
    arguments = [
        *(("", value) for value in call.args),
        *((keyword.arg or "", keyword.value) for keyword in call.keywords),
    ]
    for name, value in arguments:
        text = " ".join(text_of(value).split())
        if " " in text:
            kind = f"{name_of(call)}.{name}" if name else name_of(call)
            yield Message(path, call.lineno, kind, text)


def source_files() -> Iterator[Path]:
    for source in SOURCES:
        path = ROOT / source
        yield from [path] if path.is_file() else path.rglob("*.py")


def all_messages() -> list[Message]:
    return sorted(message for path in source_files() for message in messages_in_file(path) if message.text)


def errors_without_hint() -> list[Message]:
    """Return the errors for users of which neither text nor hint nor class explains what to do."""
    paths = list(source_files())
    names = classes_without_hint(paths)
    return sorted(
        Message(path.relative_to(ROOT).as_posix(), node.lineno, name_of(node), text_of(node.args[0]))
        for path in paths
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and name_of(node) in names and lacks_hint(node)
    )


def lacks_hint(call: ast.Call) -> bool:
    has_hint_argument = any(keyword.arg == "hint" for keyword in call.keywords)
    return bool(call.args) and not has_hint_argument and not EXPLAINS_FIX.search(text_of(call.args[0]))


def classes_without_hint(paths: Iterable[Path]) -> set[str]:
    """Return the names of OrchError and its subclasses that do not have a hint themselves."""
    classes = [node for path in paths for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    bases_by_name = {node.name: {getattr(base, "id", "") for base in node.bases} for node in classes}
    errors = {"OrchError"}
    while subclasses := {name for name, bases in bases_by_name.items() if bases & errors} - errors:
        errors |= subclasses
    return errors - {node.name for node in classes if has_hint(node)}


def has_hint(error: ast.ClassDef) -> bool:
    """Return whether a class of errors sets `default_hint`, or sets its hint in `__init__`."""
    if error.name == "OrchError":
        return False
    attributes = {
        target.id
        for node in error.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    methods = {node.name for node in error.body if isinstance(node, ast.FunctionDef)}
    return "default_hint" in attributes or "__init__" in methods


if __name__ == "__main__":
    for message in errors_without_hint() if "--unhelpful" in sys.argv else all_messages():
        print(f"{message.path}:{message.line}: {message.kind}: {message.text}")
