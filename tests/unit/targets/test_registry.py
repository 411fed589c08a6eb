"""Find the target of a run without importing the others, and explain the faulty targets of packages."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.runs import store
from orchestrator.targets import registry
from tests.support.files import write_files
from tests.support.pages import ROOT, blocks
from tests.support.recorded import make_run


def test_target_is_found_by_a_flag_a_record_and_an_inventory(tmp_path: Path) -> None:
    assert registry.find_target(None).name == "ssh"
    assert registry.find_target("k8s").name == "kubernetes"
    for inventory, name in {None: "ssh", "k8s-lab": "ssh", "k8s:team": "kubernetes", "slurm": "slurm"}.items():
        assert registry.target_at(inventory).name == name
    with pytest.raises(RequestError, match="--on k9s") as caught:
        registry.find_target("k9s")
    assert caught.value.hint == "Did you mean 'k8s'?"
    record = store.load(make_run(tmp_path, target="moon", location={"crater": 1})).record
    with pytest.raises(ExecuteError, match="runs on moon"):
        registry.target_of(record)


# Find each target in a child process of one that has imported the command line.
FIND_TARGETS = """
import os, sys
from orchestrator.cli import main
from orchestrator.targets import registry
for value in (None, *registry.entries()):
    if not os.fork():
        registry.find_target(value)
        print(value, *sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""


def test_target_is_not_imported_before_it_is_needed() -> None:
    """Import only the requested target: `orch --help` must be fast, and clients are large."""
    done = subprocess.run([sys.executable, "-c", FIND_TARGETS], capture_output=True, text=True, check=True)
    targets = {"None": registry.SSH_TARGET, **{name: entry.target for name, entry in registry.entries().items()}}
    modules = {name: path.partition(":")[0] for name, path in targets.items()}
    loaded = {name: set(names) for name, *names in map(str.split, done.stdout.splitlines())}
    assert {name: loaded[name] & {*modules.values()} for name in loaded} == {name: {modules[name]} for name in modules}
    assert not set().union(*loaded.values()) & {"kubernetes", "fabric", "paramiko"}


# Packages with faulty targets: --on explains each, and other commands work.

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
