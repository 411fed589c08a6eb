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
PLACES = ("orchestrator", "train/lib", "train/node.py", "playbooks")
SHOWN = {
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
ENDINGS = ("Error", "Refusal", "Record", "Exit")
# What a message tells to write: it needs no hint beside it.
TELLS = re.compile(r"\bexpected |\b(is|are) ([01] or more|one of |the number of |an absolute path|a number, )")


@dataclass(frozen=True, order=True)
class Word:
    path: str
    line: int
    kind: str
    text: str


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_shown(name: str) -> bool:
    return name in SHOWN or name.endswith(ENDINGS)


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


def words(path: Path) -> Iterator[Word]:
    where = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and is_shown(name_of(node)):
            yield from arguments(where, node)
        if isinstance(node, ast.FunctionDef) and where.startswith("orchestrator/cli"):
            told = ast.get_docstring(node) or ""
            yield Word(where, node.lineno, "help", " ".join(told.split()))


def arguments(where: str, call: ast.Call) -> Iterator[Word]:
    named = [(one.arg or "", one.value) for one in call.keywords]
    for keyword, value in [*(("", one) for one in call.args), *named]:
        text = " ".join(text_of(value).split())
        if " " in text:
            kind = f"{name_of(call)}.{keyword}" if keyword else name_of(call)
            yield Word(where, call.lineno, kind, text)


def files() -> Iterator[Path]:
    for place in PLACES:
        path = ROOT / place
        yield from [path] if path.is_file() else path.rglob("*.py")


def every() -> list[Word]:
    return sorted(word for path in files() for word in words(path) if word.text)


def unhelpful() -> list[Word]:
    """Errors for users whose text, hint and kind all do not say what to do."""
    trees = {path: ast.parse(path.read_text()) for path in files()}
    kinds = helpless(trees.values())
    return sorted(
        Word(path.relative_to(ROOT).as_posix(), node.lineno, name_of(node), text_of(node.args[0]))
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node) in kinds and is_unhelpful(node)
    )


def is_unhelpful(call: ast.Call) -> bool:
    hinted = any(one.arg == "hint" for one in call.keywords)
    return bool(call.args) and not hinted and not TELLS.search(text_of(call.args[0]))


def helpless(trees: Iterable[ast.Module]) -> set[str]:
    """OrchError and the kinds made of it that do not bring a hint by themselves."""
    found = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    of = {one.name: {getattr(base, "id", "") for base in one.bases} for one in found}
    helpful = {one.name for one in found if brings_a_hint(one)}
    kinds = {"OrchError"}
    while more := {name for name, bases in of.items() if bases & kinds} - kinds:
        kinds |= more
    return kinds - helpful


def brings_a_hint(kind: ast.ClassDef) -> bool:
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
    for word in unhelpful() if "--unhelpful" in sys.argv else every():
        print(f"{word.path}:{word.line}: {word.kind}: {word.text}")
