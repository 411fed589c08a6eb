"""Errors of the command line name the option and what to do; help shows the options of a target."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner, Result

from orchestrator import load
from orchestrator.cli.main import make_app
from orchestrator.errors import OrchError
from orchestrator.load.scripts import check_script_arguments
from orchestrator.targets import registry
from tests.support.files import write_files
from tests.support.recorded import make_run

K8S = ("train", "bert-qa", "--on", "k8s", "--nodes", "2", "--image", "x", "--dry-run")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder with scripts, without settings of the user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    for name in ("ORCH_K8S_FILE", "ORCH_RUNS_DIR", "ORCH_RECIPE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    write_files(tmp_path, dict.fromkeys(("own.py", "folder.py/x", "regular/__init__.py"), ""))
    write_files(tmp_path, dict.fromkeys(("bad.py", "package/__main__.py"), "def x(:\n"))
    (tmp_path / "empty").mkdir()


def orch(*arguments: str) -> Result:
    return CliRunner().invoke(make_app(arguments[0]), arguments, prog_name="orch")


def error_of(*arguments: str) -> OrchError:
    """Return the error with which orch refuses a command line."""
    result = orch(*arguments)
    assert isinstance(result.exception, OrchError), result.output
    return result.exception


def test_usage_error_has_exit_code_2_and_a_short_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getpass", Mock(side_effect=EOFError))
    make_run(tmp_path / "runs", ranks=1, nodes=1, seconds=1)
    (tmp_path / "lab.yml").write_text("all: {hosts: {n1: {ansible_host: 192.0.2.1}}}\n")
    (tmp_path / "broken.yml").write_text("all:\n  hosts: [\n")
    (tmp_path / "token").write_bytes(b"\xff")
    names = {path.name for path in tmp_path.iterdir()} | {".state"}
    for arguments, message, hint in (
        (("stop", "--jsn"), "No such option: --jsn (Possible options: --json)", "stop --help`"),  # near-option
        (("trian",), "'trian'. Did you mean 'train'?", "orch --help`"),  # near-command
        (("recipes", "bert-qa"), "'bert-qa'", "orch recipes show NAME"),  # object-without-show
        (("exec", "--foo"), "--foo", "go after --"),  # option-of-a-program
        (("logs", "--rank", "x"), "'--rank': Input should be a valid integer", "logs --help`"),
        (("logs", "--rank"), "Option '--rank' requires an argument.", "logs --help`"),
        (("train", "own.py", "--ppn"), "Option '--ppn' requires an argument.", "train --help`"),
        (("train", "folder.py"), "There is no script 'folder.py'", "Give the path"),
        (("data",), "Missing command.", "data --help`"),
        (("data", "prepare"), "Missing argument 'text|wikipedia'.", "prepare --help`"),  # choice
        (("provision",), "either an inventory or a target", "orch provision INVENTORY"),
        (("provision", "./empty"), "cannot read inventory empty", "orch init"),
        (("train", "./empty"), "./empty is a folder without recipe.toml", "orch recipes new"),
        (("train", "own.py", "--runs-dir", "/proc/x"), "/proc/x", "--runs-dir"),
        (("train", "own.py", "--runs-dir", "own.py"), "own.py is not a folder", "--runs-dir FOLDER"),
        (("train", "own.py", "--spare-nodes", "2"), "none of 1 node", "Use fewer spare nodes"),
        (("train", "bad.py"), "bad.py, line 1: invalid syntax: def x(:", "Nothing was"),
        (("train", "-m", "package"), "__main__.py, line 1", "Nothing was"),  # syntax-package
        (("train", "-m", "regular.trian"), "regular.trian", "the current folder"),
        (("train", "-m", "empty"), "no module named empty.__main__", ""),
        (("train", "-m", "regular.train.py"), "regular.train.py", "Omit .py"),
        (("train", "-m", "bad", "--on", "slurm"), "bad.py, line 1", "Nothing was"),  # module-slurm
        (("train", "bad.py", *K8S[2:-1]), "bad.py, line 1", "newer Python"),  # syntax-pods
        (("train", "bert-qa", "--", "--xyzzy", "3"), "'--xyzzy'", "orch recipes show bert-qa"),  # recipe-argument
        (("train", "bert-qa", "--on", "slurm", "--", "--save_step_s", "1"), "_s", "'save_steps'?"),  # slurm-argument
        (("train", "own.py", "--stack", "latest"), "stack 'latest'", "`orch stacks` lists"),
        (("logs", "xyz"), "no run 'xyz'", "`orch runs` lists"),
        ((*K8S, "--recipe-path", "/nonexistent"), "--recipe-path /nonexistent: no recipe.toml", ""),
        ((*K8S, "--mpi", "openmpi"), "in pods, torchrun starts them", ""),
        ((*K8S[:-1], "-o", "yaml"), "-o yaml requires --dry-run", ""),
        (("train", "bert-qa", "--k8s", "cpu=2", "--k8s-file", "x"), "--k8s is for --on k8s. --k8s-file is for ", ""),
        (("train", "bert-qa", "--launcher", "trainjob"), "--launcher trainjob does not run on this machine", ""),
        (("train", "bert-qa", "--on", "nosuch"), "--on nosuch", ""),
        (("train", "bert-qa", "--ppn", "many"), "--ppn many: expected a number or auto", ""),
        (("data", "prepare", "text", "x", "--out", "d", "--set", "kind=wikipedia"), "--set kind=wikipedia: ", ""),
        (("train", "bert-qa", "learning_rate=1e-4"), "Unexpected argument 'learning_rate=1e-4'", ""),
        (("runs", "--json", "show"), "--json has no effect before 'show'", ""),
        (("k8s", "init", "--json"), "--json requires --apply", ""),
        (("k8s", "init", "--token-file", "token"), "token does not contain a token", "- for standard input"),
        (("logs", "--grep", "x{99999999999999}"), "--grep x{99999999999999}", ""),
        (("logs", "--grep", "(" * 9999), "--grep ((", ""),
        (("train", "own.py", "--epochs", "3"), "No such option: --epochs", "--: orch train script.py -- --epochs 3."),
        (("train", "own.py", "--node", "3"), "--nodes", ""),
        (("provision", "local", "--ask-become-pass"), "no terminal", "ANSIBLE_BECOME_PASSWORD_FILE"),
        (("shell", "./lab.yml"), "needs a terminal", "orch exec ./lab.yml -- COMMAND"),
        (("provision", "inventory/prod"), "", "`orch init prod HOST...` creates inventory/prod."),
        (("provision", "hosts.ini"), "", "`orch init NAME HOST...` creates inventory/NAME. Included"),
        (("runs", "--inventory", "./lab.yml"), "", "orch provision ./lab.yml"),
        (("nodes", "./broken.yml"), "", "ansible-inventory -i broken.yml --list`"),
        (("train", "bert-qa", "--on", "k8s", "--image", "x"), "", "--nodes 4 starts four pods"),
        (("train", "bert-qa", "--set", "seed"), "", "--set learning_rate=1e-4"),
        (("setup", "--wheels", "nowhere"), "", "omit --wheels to build the bindings"),
        (("init", "lab", "alice@"), "", "Examples: node1, alice@node1:2222"),
        (("train", "bert-q"), "", "Did you mean 'bert-qa'?"),
        (("train", "bert-qa", "--stack", "curent"), "", "Did you mean 'current'?"),
        (("train", "bert-qa", "--set", "train_file=none.json"), "file not found", ""),
        (("train", "bert-qa", "--inventory", "locl"), "", "Did you mean 'local'?"),
        (("train", "bert-qa", "--backend", "gloo", "--ccl-workers", "1"), "workers 1, but the backend is gloo", ""),
        (("runs", "show", "nothing", "--runs-dir", "empty"), "There are no runs", ""),
    ):
        error = error_of(*arguments)
        assert error.exit_code == 2
        assert message in error.message
        assert hint in error.hint
        assert "\n" not in error.message
        assert len(error.hint) < 200
        assert len(list((tmp_path / "runs").iterdir())) == 1
        assert {path.name for path in tmp_path.iterdir()} <= names
    assert "after --" not in orch("runs", "--epochs", "3").stderr, "only a script has other options"


def test_unexpected_end_of_a_file_is_not_taken_for_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.cli.main.describe_versions", Mock(side_effect=EOFError))
    assert isinstance(orch("--version").exception, EOFError)


def test_setting_of_a_wrong_type_is_refused_before_anything_starts() -> None:
    for target in ((), ("--on", "k8s", "--nodes", "2", "--image", "x")):
        arguments = ("train", "bert-qa", *target, "--set")
        error = error_of(*arguments, "num_train_epochs=abc")
        assert error.message == "--set num_train_epochs=abc: not a number."
        assert "Its default is 6." in error.hint
        assert "Did you mean 'num_train_epochs'?" in error_of(*arguments, "num_train_epoch=3").hint


def test_unknown_instruction_set_is_refused_on_every_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_CPU_ISA", "avx3")
    for options in ((), K8S[2:-1]):
        error = error_of("train", "bert-qa", "--dry-run", *options)
        assert "ORCH_CPU_ISA=avx3: expected one of avx2" in error.message


def test_plan_is_a_manifest_for_pods_and_a_script_for_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    script_arguments = ("train", "own.py", "--backend", "gloo", "--dry-run")
    error = error_of(*script_arguments, "-o", "yaml")
    assert "-o yaml requires --on k8s: this plan is a shell script" in error.message
    assert json.loads(orch(*script_arguments, "--json").stdout)["kind"] == "plan"
    assert orch(*script_arguments, "data.csv").exit_code == 0
    assert "kind: TrainJob" in orch(*K8S, "-o", "yaml", "--", "--seed", "3").stdout
    monkeypatch.setenv("ORCH_K8S_FILE", "/nonexistent")
    assert orch(*script_arguments).exit_code == 0
    assert "/nonexistent" in error_of(*K8S).message


def test_help_shows_options_of_the_selected_target_only() -> None:
    titles = {entry.options.on: entry.title for entry in registry.entries().values()}
    for arguments in ((), ("--on", "k8s"), ("--on=slurm",)):
        shown = {target: title for target, title in titles.items() if arguments and arguments[-1].endswith(target)}
        hidden = {target: title for target, title in titles.items() if target not in shown}
        text = orch("train", *arguments, "--help").stdout
        panels = ["What", "Where", "Ranks", "Precision", "Restarts", "Image", *shown.values(), "Output"]
        positions = [text.index(f"─ {name} ─") for name in panels]
        assert positions == sorted(positions)
        for target, panel in hidden.items():
            assert f"─ {panel} ─" not in text
            assert f"{panel}: " in text
            assert f"train --on {target} --help" in " ".join(text.split())


def test_app_of_one_command_has_the_command_of_the_whole_app() -> None:
    for name, command in typer.main.get_command(make_app()).commands.items():
        one_command = typer.main.get_command(make_app(name)).commands
        assert list(one_command) == [name]
        assert [option.opts for option in one_command[name].params] == [option.opts for option in command.params]


def test_settings_of_a_recipe_are_listed_without_those_that_set_refuses() -> None:
    settings = {row["name"]: row for row in json.loads(orch("recipes", "show", "bert-qa", "--json").output)["settings"]}
    choices = settings["lr_scheduler_type"]["type"]
    assert f"({choices})" in orch("recipes", "show", "bert-qa").output, "they follow the description"
    assert (settings["max_seq_length"]["type"], settings["max_seq_length"]["default"]) == ("integer", 384)
    assert settings.keys().isdisjoint({"token", "hub_token", "output_dir", "bf16", "use_ipex"})


def test_arguments_of_a_recipe_are_accepted_in_all_spellings() -> None:
    arguments = "--num-train-epochs=1 --no_cuda --no_do_eval --save_total 2 --eval_strategy no -1"
    check_script_arguments(load.recipe("bert-qa"), tuple(arguments.split()))
    check_script_arguments(load.recipe("bert-data"), tuple(["--kind", "text", "--input_files", "a", "b"]))
