"""Every text that orch shows to its users, in one list, to be read whole: python -m tests.support.words

Errors and their hints, decisions, warnings, help: from the source, with {} for what is put in. A
text is found by the call that it is an argument of. `python -m tests.support.words --unhelpful` lists the
errors that say what happened, and not what to do.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("orchestrator", "train/lib", "train/node.py", "playbooks")
PRINTING_FUNCTIONS = {
    "Decision",
    "Option",
    "Argument",
    "Typer",
    "tell",
    "say",
    "print_text",
    "print_error",
    "notify",
    "warn_once",
    "note",
    "warn",
    "warned",
    "Warned",
    "Waiting",
    "Stalled",
    "Stopping",
    "NodeNews",
    "NodesLost",
    "Refused",
    "KnownError",
    "Fault",
    "Problem",
    "Limit",
    "refuse",
    "fail",
    "Finding",
    "Mismatch",
}
PRINTED_CLASSES = ("Error", "Refusal", "Record", "Exit")
# What a message tells to write: it needs no hint beside it.
EXPLAINS_FIX = re.compile(r"\bexpected |\b(is|are) ([01] or more|one of |the number of |an absolute path|a number, )")


@dataclass(frozen=True, order=True)
class Message:
    path: str
    line: int
    kind: str
    text: str


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_shown(name: str) -> bool:
    return name in PRINTING_FUNCTIONS or name.endswith(PRINTED_CLASSES)


def text_of(node: ast.expr) -> str:
    """A text as a reader sees it; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(one) or "{}" for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return f"{left or '{}'}{right or '{}'}" if left or right else ""
    if isinstance(node, ast.IfExp):
        return " / ".join(filter(None, (text_of(node.body), text_of(node.orelse))))
    return ""


def messages_in_file(path: Path) -> Iterator[Message]:
    where = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and is_shown(name_of(node)):
            yield from message_arguments(where, node)
        if isinstance(node, ast.FunctionDef) and where.startswith("orchestrator/cli"):
            told = ast.get_docstring(node) or ""
            yield Message(where, node.lineno, "help", " ".join(told.split()))


def message_arguments(where: str, call: ast.Call) -> Iterator[Message]:
    named = [(one.arg or "", one.value) for one in call.keywords]
    for keyword, value in [*(("", one) for one in call.args), *named]:
        text = " ".join(text_of(value).split())
        if " " in text:
            kind = f"{name_of(call)}.{keyword}" if keyword else name_of(call)
            yield Message(where, call.lineno, kind, text)


def source_files() -> Iterator[Path]:
    for place in SOURCES:
        path = ROOT / place
        yield from [path] if path.is_file() else path.rglob("*.py")


def all_messages() -> list[Message]:
    return sorted(word for path in source_files() for word in messages_in_file(path) if word.text)


def errors_without_hint() -> list[Message]:
    """Errors for users whose text, hint and kind all do not say what to do."""
    trees = {path: ast.parse(path.read_text()) for path in source_files()}
    kinds = classes_without_hint(trees.values())
    return sorted(
        Message(path.relative_to(ROOT).as_posix(), node.lineno, name_of(node), text_of(node.args[0]))
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node) in kinds and lacks_hint(node)
    )


def lacks_hint(call: ast.Call) -> bool:
    hinted = any(one.arg == "hint" for one in call.keywords)
    return bool(call.args) and not hinted and not EXPLAINS_FIX.search(text_of(call.args[0]))


def classes_without_hint(trees: Iterable[ast.Module]) -> set[str]:
    """OrchError and the kinds made of it that do not bring a hint by themselves."""
    found = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    of = {one.name: {getattr(base, "id", "") for base in one.bases} for one in found}
    helpful = {one.name for one in found if has_hint(one)}
    kinds = {"OrchError"}
    while more := {name for name, bases in of.items() if bases & kinds} - kinds:
        kinds |= more
    return kinds - helpful


def has_hint(kind: ast.ClassDef) -> bool:
    """Names of its own: `advice`, or how it is made."""
    if kind.name == "OrchError":
        return False
    names = {
        target.id
        for one in kind.body
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    made = {one.name for one in kind.body if isinstance(one, ast.FunctionDef)}
    return "advice" in names or "__init__" in made


if __name__ == "__main__":
    for word in errors_without_hint() if "--unhelpful" in sys.argv else all_messages():
        print(f"{word.path}:{word.line}: {word.kind}: {word.text}")
