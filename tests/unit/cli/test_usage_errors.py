"""Usage errors have a message of one form, exit code 2 and a hint for the next step."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator import load
from orchestrator.cli.main import make_app
from orchestrator.errors import OrchError, RequestError
from orchestrator.load.clusters import find_inventory
from orchestrator.load.scripts import check_script_arguments
from tests.support.recorded import make_run

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
    for number in range(12):
        make_run(tmp_path / "runs", f"202601{number + 10}-120000-qa-0000", ranks=1, nodes=1, seconds=1)
    return tmp_path


def error_of(*arguments: str) -> OrchError:
    result = CliRunner().invoke(make_app(arguments[0]), arguments, prog_name="orch")
    assert isinstance(result.exception, OrchError), result.output
    return result.exception


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        pytest.param(("attach", "--bogus"), "No such option: --bogus", "attach --help`", id="option"),
        pytest.param(
            ("stop", "--jsn"), "No such option: --jsn (Possible options: --json)", "stop --help`", id="near-option"
        ),
        pytest.param(("stop", "a", "b"), "unexpected extra argument(s) (b)", "stop --help`", id="argument"),
        pytest.param(("trian",), "'trian'. Did you mean 'train'?", "orch --help`", id="near-command"),
        pytest.param(("runs", "shwo"), "'shwo'. Did you mean 'show'?", "runs --help`", id="subcommand"),
        pytest.param(("recipes", "bert-qa"), "'bert-qa'", "orch recipes show NAME", id="object-without-show"),
        pytest.param(("exec", "--foo"), "--foo", "go after --", id="option-of-a-program"),
        pytest.param(
            ("train", "own.py", "--on", "pbs", "--image-option", "python=x"),
            "--image-option python=x requires --image.",
            "Add --image",
            id="image-option",
        ),
        pytest.param(("image",), "Missing command", "image --help`", id="no-command"),
        pytest.param(
            ("logs", "--rank", "x"), "'--rank': Input should be a valid integer", "logs --help`", id="integer"
        ),
        pytest.param(("data", "prepare"), "Missing argument 'text|wikipedia'.", "prepare --help`", id="choice"),
        pytest.param(("data", "prepare", "x"), "'x' is not one of 'text', 'wikipedia'.", "prepare --help`", id="value"),
        pytest.param(("provision",), "either an inventory or a target", "orch provision INVENTORY", id="provision"),
        pytest.param(("nodes",), "Missing argument", "nodes --help`", id="nodes"),
        pytest.param(("provision", "./empty"), "folder empty contains no inventory", "orch init", id="inventory"),
        pytest.param(("train", "./empty"), "./empty is a folder without recipe.toml", "orch recipes new", id="folder"),
        pytest.param(("train", "own.py", "--launcher", "mpiexec"), "launcher mpiexec", "mpirun'?", id="launcher"),
        pytest.param(("train", "own.py", "--runs-dir", "/proc/x"), "/proc/x", "--runs-dir", id="runs-dir"),
        pytest.param(("train", "bad.py"), "bad.py, line 1: invalid syntax: def x(:", "Nothing was", id="syntax"),
        pytest.param(("train", "-m", "bad"), "bad.py, line 1", "Nothing was", id="syntax-module"),
        pytest.param(("train", "-m", "package"), "__main__.py, line 1", "Nothing was", id="syntax-package"),
        pytest.param(("train", "bad.py", "--on", "slurm"), "bad.py, line 1", "Nothing was", id="syntax-slurm"),
        pytest.param(("train", "-m", "bad", "--on", "slurm"), "bad.py, line 1", "Nothing was", id="module-slurm"),
        pytest.param(("train", "bad.py", *PODS), "bad.py, line 1", "newer Python", id="syntax-pods"),
        pytest.param(
            ("train", "bert-qa", "--", "--xyzzy", "3"), "'--xyzzy'", "orch recipes show bert-qa", id="recipe-argument"
        ),
        pytest.param(
            ("train", "bert-qa-quant", "--", "--num_train_epoch_s=1"), "_s", "'num_train_epochs'?", id="near-argument"
        ),
        pytest.param(
            ("train", "bert-qa", "--on", "slurm", "--", "--save_step_s", "1"),
            "_s",
            "'save_steps'?",
            id="slurm-argument",
        ),
        pytest.param(("train", "bert-qa", *PODS, "--", "--sed", "1"), "'--sed'", "'seed'?", id="pods-argument"),
        pytest.param(("train", "own.py", "--stack", "latest"), "stack 'latest'", "`orch stacks` lists", id="stack"),
        pytest.param(("logs", "xyz"), "no run 'xyz'", "`orch runs` lists", id="run"),
    ],
)
def test_usage_error_has_exit_code_2_and_a_short_hint(
    folder: Path, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    runs = sorted((folder / "runs").iterdir())
    error = error_of(*arguments)
    assert error.exit_code == 2
    assert message in error.message
    assert hint in error.hint
    assert "\n" not in error.message
    assert len(error.hint) < 200
    assert sorted((folder / "runs").iterdir()) == runs


def test_orch_init_creates_an_inventory_that_is_found_by_its_name(folder: Path) -> None:
    assert CliRunner().invoke(make_app("init"), ["init", "lab", "h1"]).exit_code == 0
    assert find_inventory("lab") == Path("inventory/lab")
    (folder / "inventory/lab/program").write_text("#!/bin/sh\n")
    (folder / "inventory/lab/program").chmod(0o755)
    with pytest.raises(RequestError):
        find_inventory("lab")


@pytest.mark.parametrize(
    ("recipe", "arguments"),
    [
        ("bert-qa", "--num-train-epochs=1 --no_cuda --no_do_eval --save_total 2 --eval_strategy no -1"),
        ("bert-qa-quant", "--quantization_approach dynamic --max_seq_length 128 --warmup_ratio 0.1"),
        ("bert-pretrain", "--output_dir=x --learning_rate 1e-4"),
        ("bert-data", "--kind text --input_files a b"),
    ],
    ids=["bert-qa", "bert-qa-quant", "bert-pretrain", "bert-data"],
)
def test_arguments_of_a_recipe_are_accepted_in_all_spellings(recipe: str, arguments: str) -> None:
    check_script_arguments(load.recipe(recipe), tuple(arguments.split()))
