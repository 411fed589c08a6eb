"""Mistakes on the command line: one form of message, exit code 2, and a hint for the next step."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.errors import OrchError, RequestError
from orchestrator.load.clusters import find_inventory
from tests.recorded import make_run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    monkeypatch.delenv("ORCH_RUNS_DIR", raising=False)
    (tmp_path / "own.py").write_text("")
    (tmp_path / "bad.py").write_text("def x(:\n")
    (tmp_path / "empty").mkdir()
    for number in range(12):
        make_run(tmp_path / "runs", f"202601{number + 10}-120000-qa-0000", ranks=1, nodes=1, seconds=1)
    return tmp_path


def error_of(*arguments: str) -> OrchError:
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, OrchError), done.output
    return done.exception


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        pytest.param(("attach", "--bogus"), "No such option: --bogus", "attach --help`", id="option"),
        pytest.param(("stop", "a", "b"), "unexpected extra argument", "stop --help`", id="argument"),
        pytest.param(("nosuch",), "No such command 'nosuch'", "--help`", id="command"),
        pytest.param(("provision",), "Which hosts are meant?", "orch provision INVENTORY", id="provision"),
        pytest.param(("nodes",), "Missing argument", "nodes --help`", id="nodes"),
        pytest.param(("provision", "./empty"), "empty is a folder without an inventory", "orch init", id="inventory"),
        pytest.param(("train", "./empty"), "./empty is a folder without recipe.toml", "orch recipes new", id="folder"),
        pytest.param(("train", "own.py", "--launcher", "mpiexec"), "launcher 'mpiexec'", "mpirun'?", id="launcher"),
        pytest.param(("train", "own.py", "--runs-dir", "/proc/x"), "/proc/x", "--runs-dir", id="runs-dir"),
        pytest.param(("train", "bad.py"), "bad.py, line 1: invalid syntax: def x(:", "Nothing was", id="syntax"),
        pytest.param(("train", "own.py", "--stack", "latest"), "stack 'latest'", "`orch stacks` lists", id="stack"),
        pytest.param(("logs", "xyz"), "no run 'xyz'", "`orch runs` lists", id="run"),
    ],
)
def test_a_mistake_has_one_form_and_a_short_hint(
    folder: Path, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    before = sorted((folder / "runs").iterdir())
    error = error_of(*arguments)
    assert error.exit_code == 2
    assert message in error.message
    assert hint in error.hint
    assert len(error.hint) < 200
    assert sorted((folder / "runs").iterdir()) == before


def test_the_name_of_orch_init_is_an_inventory(folder: Path) -> None:
    assert CliRunner().invoke(app, ["init", "lab", "h1"]).exit_code == 0
    assert find_inventory("lab") == Path("inventory/lab")
    (folder / "inventory/lab/program").write_text("#!/bin/sh\n")
    (folder / "inventory/lab/program").chmod(0o755)
    with pytest.raises(RequestError):
        find_inventory("lab")
