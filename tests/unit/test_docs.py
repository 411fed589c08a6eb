"""The pages for users: the site builds, and what they tell a reader to type is understood.

A block of commands (```sh) is marked in a comment above it: `tested by: FILE`, `dry-run`
(tests/local/test_docs.py plans it), or `not run: WHY`. Blocks of `orch` alone need no mark: here
each of their lines is parsed by the real command line, and the verbs have tests of their own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from orchestrator.cli.main import app
from tests.pages import PAGES, ROOT, Block, blocks

MARK = re.compile(r"tested by: (?P<file>\S+)|dry-run|not run: \S.*", re.DOTALL)
ALL = [(page, block) for page in PAGES for block in blocks(page)]
CONFIGURATION = ROOT / "docs" / "reference" / "configuration.md"


def named(value: object) -> str:
    return value.name if isinstance(value, Path) else str(getattr(value, "line", value))


def complaint(words: list[str]) -> str:
    """What orch would say of words that it does not know; nothing of those that it would follow."""
    try:
        parse(words)
    except (typer.Exit, SystemExit):  # what only prints: --version, --help
        return ""
    except Exception as error:
        return str(getattr(error, "message", "")) or repr(error)
    return ""


def parse(words: list[str]) -> None:
    """Down to the last subcommand, as orch does."""
    command = typer.main.get_command(app)
    context = command.make_context("orch", words, resilient_parsing=False)
    while isinstance(command, TyperGroup):
        left = [*context._protected_args, *context.args]
        if not left:
            return
        name, found, left = command.resolve_command(context, left)
        assert found is not None
        command, context = found, found.make_context(name, left, parent=context)


@pytest.mark.parametrize(("page", "block"), ALL, ids=named)
def test_what_a_page_tells_to_type_is_understood(page: Path, block: Block) -> None:
    others = [words for words in block.commands() if words[0] != "orch"]
    for words in block.commands():
        if words[0] == "orch":
            assert not (said := complaint(words[1:])), f"{page.name}:{block.line}: {words}: {said}"
    mark = MARK.fullmatch(block.mark)
    assert mark or not block.mark, f"{page.name}:{block.line}: no such mark: {block.mark}"
    assert mark or not block.fenced or not others, f"{page.name}:{block.line}: needs a mark"
    if mark and mark["file"]:
        assert (ROOT / mark["file"]).exists()


def test_a_wrong_option_is_found() -> None:
    assert "No such option: --nod" in complaint(["train", "bert-qa", "--nod"])
    assert "No such command" in complaint(["runs", "no-such-verb"])
    assert complaint(["runs", "show", "last"]) == ""


def test_every_variable_of_the_inventory_is_told() -> None:
    """Those that the code and the roles read of an inventory."""
    read = {"orch_address", "orch_port", "orch_root", "orch_python", "orch_env", "orch_secrets",
            "orch_firewall", "stack_index_url"}  # fmt: skip
    for path in (ROOT / "orchestrator" / "load").glob("*.py"):
        read |= set(re.findall(r'^VARIABLE = "(orch_\w+)"', path.read_text(), re.MULTILINE))
    text = CONFIGURATION.read_text()
    assert {name for name in read if f"`{name}`" not in text} == set()


def test_the_site_builds_and_no_link_is_broken(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--dry-run" in (tmp_path / "reference" / "cli.html").read_text()
    assert "first_step" in (tmp_path / "reference" / "events.html").read_text()


LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)")


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=named)
def test_the_doors_links_lead_somewhere(page: Path) -> None:
    assert [to for to in LINK.findall(page.read_text()) if not (page.parent / to).exists()] == []
