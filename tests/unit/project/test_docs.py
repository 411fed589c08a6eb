"""The pages for users: the site builds, and what they tell a reader to type is understood.

Each block is fenced, and marked in a comment above it. Commands (sh): `tested by: FILE`, `dry-run`
(tests/local/test_docs.py plans it), or `not run: WHY`; those of `orch` alone need no mark: here
each of their lines is parsed by the real command line, and the verbs have tests of their own.
Files (toml, yaml): `checked as: READER`, by test_files_on_pages.py, which also reads each python
block. Text: `shown: WHAT`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from orch_node.protocol import files
from typer.core import TyperGroup

from orchestrator.cli.main import EXAMPLES, app
from orchestrator.load.inventory import KNOWN_VARIABLES
from tests.pages import PAGES, ROOT, Block, blocks, indented

COMMANDS = re.compile(r"tested by: (?P<file>\S+)|dry-run|not run: \S.*", re.DOTALL)
FILES = re.compile(r"tested by: (?P<file>\S+)|checked as: \S.*|not run: \S.*", re.DOTALL)
MARKS = {
    "sh": COMMANDS,
    "toml": FILES,
    "yaml": FILES,
    "python": re.compile(r"|checked as: \S.*"),
    "text": re.compile(r"shown: \S.*", re.DOTALL),
}
ALL = [(page, block) for page in PAGES for block in blocks(page)]
CONFIGURATION = ROOT / "docs" / "reference" / "configuration.md"


def named(value: object) -> str:
    """A test's name: the page, and the line of the block."""
    if isinstance(value, Path):
        return value.name
    return f"{value.language}-{value.line}" if isinstance(value, Block) else str(value)


def complaint(words: list[str]) -> str:
    """What orch would say of words that it does not know; nothing of those that it would follow."""
    try:
        parse(words)
    except (typer.Exit, SystemExit):  # what only prints: --version, --help
        return ""
    except Exception as error:
        return str(getattr(error, "message", "")) or repr(error)
    return ""


COMMAND = typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Down to the last subcommand, as orch does."""
    command = COMMAND
    context = command.make_context("orch", words, resilient_parsing=False)
    while isinstance(command, TyperGroup):
        left = [*context._protected_args, *context.args]
        if not left:
            return
        name, found, left = command.resolve_command(context, left)
        assert found is not None
        command, context = found, found.make_context(name, left, parent=context)


@pytest.mark.parametrize(("page", "block"), ALL, ids=named)
def test_a_block_says_how_it_is_checked(page: Path, block: Block) -> None:
    where = f"{page.name}:{block.line}"
    assert block.language in MARKS, f"{where}: no such language: {block.language!r}"
    mark = MARKS[block.language].fullmatch(block.mark)
    if block.language == "sh" and not block.mark:
        assert {words[0] for words in block.commands()} == {"orch"}, f"{where}: needs a mark"
        return
    assert mark, f"{where}: no such mark for {block.language}: {block.mark!r}"
    if file := mark.groupdict().get("file"):
        assert (ROOT / file).exists(), where


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_has_no_block_without_a_fence(page: Path) -> None:
    assert indented(page) == []


COMMAND_LINES = [
    (page, words) for page, block in ALL if block.language == "sh" for words in block.commands() if words[0] == "orch"
]


def test_what_a_page_tells_to_type_is_understood() -> None:
    assert len(COMMAND_LINES) > 60
    said = {f"{page.name}: {' '.join(words)}": complaint(words[1:]) for page, words in COMMAND_LINES}
    assert {command: words for command, words in said.items() if words} == {}


PROSE = re.compile(r"`orch ([^`]+)`")


def test_what_a_page_names_in_a_sentence_is_there() -> None:
    """Commands and options; a sentence may leave the rest of a command out."""
    named = {text for page in PAGES for text in PROSE.findall(page.read_text())}
    assert len(named) > 30
    said = {text: complaint(text.replace("|", " ").split()) for text in named}
    assert {text: words for text, words in said.items() if words.startswith("No such")} == {}


def test_the_examples_of_the_help_are_understood() -> None:
    assert [complaint(one.split()[1:]) for one in EXAMPLES] == [""] * len(EXAMPLES)


def test_a_wrong_option_is_found() -> None:
    assert "No such option: --nod" in complaint(["train", "bert-qa", "--nod"])
    assert "No such command" in complaint(["runs", "no-such-verb"])
    assert complaint(["runs", "show", "last"]) == ""


def test_every_variable_of_the_inventory_is_told() -> None:
    """Those that the code and the roles read of an inventory."""
    read = {*KNOWN_VARIABLES, "stack_index_url"}
    for path in (ROOT / "orchestrator" / "load").glob("*.py"):
        read |= set(re.findall(r'^VARIABLE = "(orch_\w+)"', path.read_text(), re.MULTILINE))
    text = CONFIGURATION.read_text()
    assert {name for name in read if f"`{name}`" not in text} == set()


def test_every_file_of_a_run_is_told() -> None:
    text = (CONFIGURATION.parent / "files.md").read_text()
    names = {value for name, value in vars(files).items() if name.isupper() and name != "SECRETS"}
    assert len(names) > 10
    assert {name for name in names if isinstance(name, str) and f"`{name}" not in text} == set()


# What orch's own processes say to each other, or to its build.
INTERNAL = {
    "ORCH_ADDRESS",
    "ORCH_BY_STEP",
    "ORCH_CCL_CHECK",
    "ORCH_CCL_MOST_ELEMENTS",
    "ORCH_CCL_SANITIZE",
    "ORCH_CCL_VERSION",
    "ORCH_END_OF_FILE",
    "ORCH_EVENTS_FD",
    "ORCH_INLINE",
    "ORCH_JOB_KEY",
    "ORCH_NODE0_AWAY",
    "ORCH_PLAYBOOK",
    "ORCH_RANK_DEFAULTS",
    "ORCH_SSH_CONFIG",
    "ORCH_STACK",
}


def test_every_variable_of_the_environment_is_told() -> None:
    sources = [
        path
        for top in ("orchestrator", "train/lib", "bindings")
        for kind in ("py", "cpp")
        for path in (ROOT / top).rglob(f"*.{kind}")
    ]
    read = {name for path in sources for name in re.findall(r"\bORCH_[A-Z0-9_]+", path.read_text())}
    text = CONFIGURATION.read_text()
    assert {name for name in read - INTERNAL if f"`{name}`" not in text} == set()


def test_the_site_builds_and_no_link_is_broken(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    options = (tmp_path / "reference" / "cli.html").read_text()
    assert "<code>--show RANK|all|none</code>" in options.replace("&#124;", "|")
    assert "&amp;lt;" not in options, "no angle bracket is escaped twice"
    assert "first_step" in (tmp_path / "reference" / "events.html").read_text()


LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)")


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=named)
def test_the_doors_links_lead_somewhere(page: Path) -> None:
    assert [to for to in LINK.findall(page.read_text()) if not (page.parent / to).exists()] == []
