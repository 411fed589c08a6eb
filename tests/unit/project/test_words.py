"""Check that errors for users explain what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.syntax import nodes_of

ROOT = Path(__file__).parents[3]
SOURCES = ("orchestrator", "train/lib", "playbooks")
# A message that matches explains what to write, so it needs no hint.
EXPLAINS_FIX = re.compile(r"\bexpected |\b(is|are) ([01] or more|one of |the number of |an absolute path|a number, )")
INTERNAL_ERRORS = ("Expired",)  # caught by the watch that raises them, so that no user reads them


def text_of(node: ast.expr) -> str:
    """Return the text of an expression, with {} for values; empty if it is not a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return ""


def errors_without_hint() -> Iterator[str]:
    """Yield the errors for users of which neither text nor hint nor class explains what to do."""
    nodes = {path: nodes_of(path) for source in SOURCES for path in (ROOT / source).rglob("*.py")}
    classes = [node for tree in nodes.values() for node in tree if isinstance(node, ast.ClassDef)]
    names = classes_without_hint(classes)
    for path, tree in nodes.items():
        for node in tree:
            name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            if name in names and lacks_hint(node):
                yield f"{path}:{node.lineno}: {name}: {text_of(node.args[0])}"


def lacks_hint(call: ast.Call) -> bool:
    has_hint_argument = any(keyword.arg == "hint" for keyword in call.keywords)
    return bool(call.args) and not has_hint_argument and not EXPLAINS_FIX.search(text_of(call.args[0]))


def classes_without_hint(classes: list[ast.ClassDef]) -> set[str]:
    """Return the names of OrchError and its subclasses that do not have a hint themselves."""
    bases_by_name = {node.name: {getattr(base, "id", "") for base in node.bases} for node in classes}
    errors = {"OrchError"}
    while subclasses := {name for name, bases in bases_by_name.items() if bases & errors} - errors:
        errors |= subclasses
    return errors - {node.name for node in classes if node.name != "OrchError" and has_hint(node)} - {*INTERNAL_ERRORS}


def has_hint(error: ast.ClassDef) -> bool:
    """Return whether a class of errors sets `default_hint`, or sets its hint in `__init__`."""
    names = {node.name for node in error.body if isinstance(node, ast.FunctionDef)}
    targets = [target for node in error.body if isinstance(node, ast.Assign) for target in node.targets]
    return not {"default_hint", "__init__"}.isdisjoint(names | {getattr(target, "id", "") for target in targets})


def test_errors_say_what_to_do() -> None:
    """Require a hint, a default hint of the error's class, or the expected value in the message."""
    assert list(errors_without_hint()) == []


def test_help_has_no_brackets_that_rich_takes_for_markup() -> None:
    """Avoid texts such as `[user@]`, which rich would not print."""
    calls = [node for path in (ROOT / "orchestrator/cli").rglob("*.py") for node in nodes_of(path)]
    keywords = [keyword for node in calls if isinstance(node, ast.Call) for keyword in node.keywords]
    texts = [text_of(keyword.value) for keyword in keywords if keyword.arg == "help"]
    assert len(texts) > 50
    assert [text for text in texts if re.search(r"\[[a-z#/@][^\[]*?\]", text)] == []
