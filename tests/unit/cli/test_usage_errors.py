"""Usage errors have a message of one form, exit code 2 and a hint for the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.load.scripts import check_script_arguments
from tests.support.recorded import make_run
from tests.unit.cli.test_command_line import error_of

PODS = ("--on", "k8s", "--launcher", "job", "--nodes", "1", "--image", "orch")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    monkeypatch.delenv("ORCH_RUNS_DIR", raising=False)
    (tmp_path / "own.py").write_text("")
    (tmp_path / "bad.py").write_text("def x(:\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__main__.py").write_text("def x(:\n")
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "runs", ranks=1, nodes=1, seconds=1)
    return tmp_path


def test_usage_error_has_exit_code_2_and_a_short_hint(folder: Path) -> None:
    for arguments, message, hint in (
        (("stop", "--jsn"), "No such option: --jsn (Possible options: --json)", "stop --help`"),  # near-option
        (("trian",), "'trian'. Did you mean 'train'?", "orch --help`"),  # near-command
        (("recipes", "bert-qa"), "'bert-qa'", "orch recipes show NAME"),  # object-without-show
        (("exec", "--foo"), "--foo", "go after --"),  # option-of-a-program
        (("logs", "--rank", "x"), "'--rank': Input should be a valid integer", "logs --help`"),
        (("data", "prepare"), "Missing argument 'text|wikipedia'.", "prepare --help`"),  # choice
        (("provision",), "either an inventory or a target", "orch provision INVENTORY"),
        (("provision", "./empty"), "folder empty contains no inventory", "orch init"),
        (("train", "./empty"), "./empty is a folder without recipe.toml", "orch recipes new"),
        (("train", "own.py", "--launcher", "mpiexec"), "launcher mpiexec", "mpirun'?"),
        (("train", "own.py", "--runs-dir", "/proc/x"), "/proc/x", "--runs-dir"),
        (("train", "bad.py"), "bad.py, line 1: invalid syntax: def x(:", "Nothing was"),
        (("train", "-m", "package"), "__main__.py, line 1", "Nothing was"),  # syntax-package
        (("train", "-m", "bad", "--on", "slurm"), "bad.py, line 1", "Nothing was"),  # module-slurm
        (("train", "bad.py", *PODS), "bad.py, line 1", "newer Python"),  # syntax-pods
        (("train", "bert-qa", "--", "--xyzzy", "3"), "'--xyzzy'", "orch recipes show bert-qa"),  # recipe-argument
        (("train", "bert-qa", "--on", "slurm", "--", "--save_step_s", "1"), "_s", "'save_steps'?"),  # slurm-argument
        (("train", "own.py", "--stack", "latest"), "stack 'latest'", "`orch stacks` lists"),
        (("logs", "xyz"), "no run 'xyz'", "`orch runs` lists"),
    ):
        runs = sorted((folder / "runs").iterdir())
        error = error_of(*arguments)
        assert error.exit_code == 2
        assert message in error.message
        assert hint in error.hint
        assert "\n" not in error.message
        assert len(error.hint) < 200
        assert sorted((folder / "runs").iterdir()) == runs


def test_arguments_of_a_recipe_are_accepted_in_all_spellings() -> None:
    arguments = "--num-train-epochs=1 --no_cuda --no_do_eval --save_total 2 --eval_strategy no -1"
    check_script_arguments(load.recipe("bert-qa"), tuple(arguments.split()))
    check_script_arguments(load.recipe("bert-data"), tuple(["--kind", "text", "--input_files", "a", "b"]))
