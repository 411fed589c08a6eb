"""Packages with faulty targets: --on explains each, and other commands work."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer

from orchestrator.cli import main
from orchestrator.errors import RequestError
from orchestrator.targets import registry
from orchestrator.targets.entry import COMMAND_OPTIONS
from tests.support.files import write_files
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
    _, entry, target, *_ = blocks(PAGE)
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: orch-booking\nVersion: 1.0\n",
        "entry_points.txt": "[orch.targets]\nbooking = orch_booking:ENTRY\n",
    }
    write_files(tmp_path / "orch_booking-1.0.dist-info", info)
    texts = {ENTRY: f"{entry.text}\n", TARGET: f"{target.text}\n"}
    return write_files(tmp_path, {**texts, "hosts.txt": "node0\n", "train.py": "print('trained')\n"})


def replace_text(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


MISSING_MODULE = ("from dataclasses", "import nothere\nfrom dataclasses")
FIELD = "    booking: Path"
FAULTS = (
    (ENTRY, FIELD, "    nodes: Path", "in use already: nodes"),  # option of train
    (ENTRY, FIELD, "    slurm: Path", "in use already: slurm"),  # option of a target
    (ENTRY, FIELD, "    set: Path", "in use already: set"),  # option with another name than its parameter
    (ENTRY, "= option(", "= (lambda value, **_: value)(", "not made by option(): booking"),
    (ENTRY, "@dataclass(frozen", "(lambda **_: lambda kind: kind)(frozen", "is not a TargetEntry"),
    (ENTRY, 'on: ClassVar[str] = "booking"', 'on: ClassVar[str] = "book"', "on = 'booking'"),
    (ENTRY, "target:Booking", "target:Boking", "has no attribute 'BokingTarget'"),
    (TARGET, "(SshTarget)", "", "is not a subclass of Target"),
    (TARGET, "(SshTarget)", "(SshTarget.__base__)", "abstract methods"),
    (TARGET, '{"nodes": ', '{"nods": ', "refuses nods, which TrainRequest does not have"),
)


def test_faulty_target_is_explained(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(package)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Faults are written within one second.
    point = EntryPoint("booking", "orch_booking:ENTRY", registry.GROUP)
    for file, old, new, message in FAULTS:
        text = (package / file).read_text()
        replace_text(package / file, old, new)
        with pytest.raises(RequestError, match=f"^--on booking: .*{re.escape(message)}") as caught:
            registry.create(registry.load_entry(point, registry.entries()))
        assert caught.value.hint
        (package / file).write_text(text)
        for name in ("orch_booking", "orch_booking.target"):
            sys.modules.pop(name, None)


def test_faulty_target_is_an_error_of_commands_that_use_it_only(package: Path) -> None:
    train = ("train", "train.py", "--on", "booking", "--booking")
    failed = orch(package, *train, "missing.txt")
    assert failed.returncode == 2
    assert "'--booking'" in failed.stderr
    assert "missing.txt" in failed.stderr
    for file in (TARGET, ENTRY):
        replace_text(package / file, *MISSING_MODULE)
        failed = orch(package, *train, "hosts.txt", "--dry-run")
        assert (failed.returncode, failed.stdout) == (2, "")
        assert failed.stderr.startswith("error: --on booking: ")
        assert "'nothere'.\nhint: " in failed.stderr
    listed = orch(package, "runs", "--json")
    assert (listed.returncode, listed.stderr) == (0, "")


def test_all_options_of_the_commands_are_reserved() -> None:
    commands = typer.main.get_command(main.make_app()).commands  # type: ignore[attr-defined]
    of_targets = {name for entry in registry.entries().values() for name in entry.options.__dataclass_fields__}  # type: ignore[attr-defined]
    for command in (commands["train"], commands["provision"]):
        for parameter in command.params:
            flags = [flag for flag in (*parameter.opts, *parameter.secondary_opts) if flag.startswith("--")]
            names = {parameter.name, *(flag[2:].replace("-", "_") for flag in flags)}
            assert names - of_targets <= COMMAND_OPTIONS
