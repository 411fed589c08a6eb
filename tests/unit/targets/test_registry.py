"""Packages with faulty targets: --on explains each, and other commands work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from orchestrator.cli import main
from orchestrator.targets import registry
from orchestrator.targets.entry import COMMAND_OPTIONS
from tests.support.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/own-targets.md"
ENTRY, TARGET = "orch_booking/__init__.py", "orch_booking/target.py"


def orch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run orch with the packages of a folder."""
    text = (
        f"import sys; sys.argv[0] = 'orch'; sys.path.append({str(folder)!r}); "
        "from orchestrator.cli.main import main; main()"
    )
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with the installed package of the page."""
    for name, block in zip(("", ENTRY, TARGET), blocks(PAGE), strict=False):
        if name:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(f"{block.text}\n")
    info = tmp_path / "orch_booking-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: orch-booking\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[orch.targets]\nbooking = orch_booking:ENTRY\n")
    (tmp_path / "hosts.txt").write_text("node0\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        pytest.param(ENTRY, "from dataclasses", "import nothere\nfrom dataclasses", "'nothere'", id="import error"),
        pytest.param(ENTRY, "    booking: Path", "    nodes: Path", "in use already: nodes", id="train's"),
        pytest.param(ENTRY, "    booking: Path", "    slurm: Path", "in use already: slurm", id="a target's"),
        pytest.param(ENTRY, "    booking: Path", "    verbose: Path", "in use already: verbose", id="output option"),
        pytest.param(ENTRY, "    booking: Path", "    set: Path", "in use already: set", id="renamed option"),
        pytest.param(
            ENTRY, "= option(", "= (lambda value, **_: value)(", "not made by option(): booking", id="plain field"
        ),
        pytest.param(
            ENTRY,
            "@dataclass(frozen",
            "(lambda **_: lambda kind: kind)(frozen",
            "is not a TargetEntry",
            id="no dataclass",
        ),
        pytest.param(ENTRY, 'on: ClassVar[str] = "booking"', 'on: ClassVar[str] = "book"', "on = 'booking'", id="on"),
        pytest.param(
            ENTRY, 'name="booking"', 'name="ssh"', "has the name of another target", id="name of another target"
        ),
        pytest.param(ENTRY, "target:Booking", "target:Boking", "has no attribute 'BokingTarget'", id="wrong class"),
        pytest.param(TARGET, "from dataclasses", "import nothere\nfrom dataclasses", "'nothere'", id="module error"),
        pytest.param(TARGET, "(SshTarget)", "", "is not a subclass of Target", id="no target"),
        pytest.param(TARGET, "(SshTarget)", "(SshTarget.__base__)", "abstract methods", id="no methods"),
        pytest.param(
            TARGET, '{"nodes": ', '{"nods": ', "refuses nods, which TrainRequest does not have", id="unknown refusal"
        ),
    ],
)
def test_faulty_target_is_explained(package: Path, file: str, old: str, new: str, message: str) -> None:
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))
    failed = orch(package, "train", "train.py", "--on", "booking", "--booking", "hosts.txt", "--dry-run")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("error: --on booking: ")
    assert "\nhint: " in failed.stderr
    assert message in failed.stderr


def test_faulty_target_disturbs_no_other_command(package: Path) -> None:
    with (package / ENTRY).open("a") as file:
        file.write("import nothere\n")
    listed = orch(package, "runs", "--json")
    assert (listed.returncode, listed.stderr) == (0, "")


def test_missing_file_of_an_option_is_explained(package: Path) -> None:
    failed = orch(package, "train", "train.py", "--on", "booking", "--booking", "missing.txt")
    assert failed.returncode == 2
    assert "'--booking'" in failed.stderr
    assert "missing.txt" in failed.stderr


def test_all_options_of_the_commands_are_reserved() -> None:
    commands = typer.main.get_command(main.make_app()).commands  # type: ignore[attr-defined]
    of_targets = {name for entry in registry.entries().values() for name in entry.options.__dataclass_fields__}  # type: ignore[attr-defined]
    for command in (commands["train"], commands["provision"]):
        for parameter in command.params:
            flags = [flag for flag in (*parameter.opts, *parameter.secondary_opts) if flag.startswith("--")]
            names = {parameter.name, *(flag[2:].replace("-", "_") for flag in flags)}
            assert names - of_targets <= COMMAND_OPTIONS
