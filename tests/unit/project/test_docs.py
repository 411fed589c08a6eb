"""Check the pages for users: the site builds, and orch accepts the commands that the pages show.

Every block is fenced and has a mark, a comment above it:

- Commands (sh): `tested by: FILE`, `dry-run` (tests/local/test_docs.py plans it), or `not run: REASON`. A block
  of `orch` commands needs no mark: its lines are parsed here by the real command line.
- Files (toml, yaml): `checked as: READER`, by test_files_on_pages.py, which also reads each python block.
- Text: `shown: DESCRIPTION`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import typer
from orch_node.protocol import files
from typer.core import TyperGroup

from docs.tools import events
from orchestrator.cli.main import EXAMPLES, make_app
from orchestrator.load.inventory import VARIABLES
from tests.support.pages import PAGES, ROOT, Block, blocks

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
DOCS = ROOT / "docs"
CONFIGURATION = DOCS / "reference" / "configuration.md"
COMMAND = typer.main.get_command(make_app())
COMMAND_LINES = [
    (page, arguments)
    for page, block in ALL
    if block.language == "sh"
    for arguments in block.commands()
    if arguments[0] == "orch"
]
INLINE_COMMAND = re.compile(r"`orch ([^`]+)`")
# A link to a file, without its anchor.
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
# Variables that orch's processes, tests or build set for each other; users do not set them.
INTERNAL = """
    ORCH_ADDRESS ORCH_BY_STEP ORCH_CCL_CHECK ORCH_CCL_MOST_ELEMENTS ORCH_CCL_SANITIZE ORCH_CCL_THREADS
    ORCH_CCL_VERSION ORCH_BINDINGS ORCH_END_OF_FILE ORCH_EVENTS_FD ORCH_IMAGE_PACKAGES ORCH_INLINE ORCH_JOB_KEY
    ORCH_JOB_RESTARTS ORCH_JOINING ORCH_KERNELS ORCH_PARENT_RANK ORCH_PBS_CPUS ORCH_PBS_NODE ORCH_PLAYBOOK
    ORCH_USER_VARIABLES ORCH_PYTHON ORCH_PYTHON_PATH ORCH_RANK_DEFAULTS ORCH_SSH_CONFIG ORCH_SSH_SOCKETS ORCH_STACK
    ORCH_STOP_ON_NAN ORCH_USER_PYTHON
"""


def usage_error(arguments: list[str]) -> str:
    """Return the error of orch's command line for these arguments, or ""."""
    try:
        parse(arguments)
    except (typer.Exit, SystemExit):  # --version and --help only print
        return ""
    except Exception as error:
        return str(getattr(error, "message", "")) or repr(error)
    return ""


def parse(arguments: list[str]) -> None:
    """Parse arguments down to the last subcommand, as orch does."""
    command = COMMAND
    context = command.make_context("orch", arguments, resilient_parsing=False)
    while isinstance(command, TyperGroup):
        remaining = [*context._protected_args, *context.args]
        if not remaining:
            return
        name, subcommand, remaining = command.resolve_command(context, remaining)
        command, context = subcommand, subcommand.make_context(name, remaining, parent=context)


def has_valid_mark(block: Block) -> bool:
    if block.language == "sh" and not block.mark:
        return {arguments[0] for arguments in block.commands()} == {"orch"}
    mark = MARKS[block.language].fullmatch(block.mark) if block.language in MARKS else None
    return mark is not None and (ROOT / (mark.groupdict().get("file") or "")).exists()


def test_every_block_has_a_mark_of_its_language() -> None:
    blocks_without = [(page, block) for page, block in ALL if not has_valid_mark(block)]
    assert [f"{page.name}:{block.line}: {block.language} {block.mark!r}" for page, block in blocks_without] == []


def test_page_of_events_is_up_to_date() -> None:
    assert (DOCS / "reference/events.md").read_text() == events.page(), (
        "PYTHONPATH=train/lib python -m docs.tools.events prints it"
    )


def test_orch_accepts_every_command_in_a_block_and_in_its_help() -> None:
    assert len(COMMAND_LINES) > 60
    errors = {f"{page.name}: {' '.join(arguments)}": usage_error(arguments[1:]) for page, arguments in COMMAND_LINES}
    errors |= {example: usage_error(example.split()[1:]) for example in EXAMPLES}
    assert {command: error for command, error in errors.items() if error} == {}


def test_commands_and_options_in_sentences_exist() -> None:
    """Ignore errors about missing arguments, which a sentence may omit."""
    texts = {text for page in PAGES for text in INLINE_COMMAND.findall(page.read_text())}
    assert len(texts) > 30
    errors = {text: usage_error(text.replace("|", " ").split()) for text in texts}
    assert {text: error for text, error in errors.items() if error.startswith("No such")} == {}


def test_configuration_page_lists_every_variable_of_inventories_and_the_environment() -> None:
    names = {*VARIABLES["orch"], "stack_index_url"}
    for path in (ROOT / "orchestrator" / "load").glob("*.py"):
        names |= set(re.findall(r'^VARIABLE = "(orch_\w+)"', path.read_text(), re.MULTILINE))
    sources = [
        path
        for folder in ("orchestrator", "train/lib", "bindings")
        for suffix in ("py", "cpp")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    names |= {name for path in sources for name in re.findall(r"\bORCH_[A-Z0-9_]+", path.read_text())}
    text = CONFIGURATION.read_text()
    assert {name for name in names - {*INTERNAL.split()} if f"`{name}`" not in text} == set()


def test_files_page_lists_every_file_of_a_run() -> None:
    text = (DOCS / "reference" / "files.md").read_text()
    excluded = ("SECRETS", "EXECUTABLE", "LINK")
    names = {value for name, value in vars(files).items() if name.isupper() and name not in excluded}
    assert len(names) > 10
    assert {name for name in names if isinstance(name, str) and f"`{name.partition('{')[0]}" not in text} == set()


def test_site_builds_without_broken_links(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    options = (tmp_path / "reference" / "cli.html").read_text()
    assert "<code>--show RANK|all|none</code>" in options.replace("&#124;", "|")
    assert "&amp;lt;" not in options, "an angle bracket is escaped twice"
    assert "first_step" in (tmp_path / "reference" / "events.html").read_text()


def test_links_lead_to_files_of_the_repository() -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/RESULTS.md"]
    links = [(page, target) for page in pages for target in LINK.findall(page.read_text())]
    assert [(str(page), target) for page, target in links if not (page.parent / target).exists()] == []


def test_paths_in_the_map_of_the_code_exist() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    paths = re.findall(r"`([\w./*-]+/[\w./*-]*)`", (ROOT / "CONTRIBUTING.md").read_text())
    inside = [path for path in paths if path.split("/")[0] in folders]
    assert len(inside) > 40
    assert [path for path in inside if not list(ROOT.glob(path.rstrip("/")))] == []
