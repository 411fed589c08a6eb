"""Errors of the command line name the option and what to do; help shows the options of a target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from orchestrator.cli.main import main, make_app
from orchestrator.errors import OrchError
from orchestrator.targets import registry

K8S = ("train", "bert-qa", "--on", "k8s", "--nodes", "2", "--image", "x", "--dry-run")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder with one script, without settings of the user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    for name in ("ORCH_K8S_FILE", "ORCH_RUNS_DIR", "ORCH_RECIPE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    (tmp_path / "own.py").write_text("")


def orch(*arguments: str) -> Result:
    return CliRunner().invoke(make_app(arguments[0]), arguments, prog_name="orch")


def error_of(*arguments: str) -> OrchError:
    """Return the error with which orch refuses a command line."""
    result = orch(*arguments)
    assert isinstance(result.exception, OrchError), result.output
    return result.exception


def test_option_without_an_effect_is_refused() -> None:
    for arguments, message in (
        ((*K8S, "--recipe-path", "/nonexistent"), "--recipe-path /nonexistent: no recipe.toml"),
        ((*K8S, "--mpi", "openmpi"), "in pods, torchrun starts them"),
        ((*K8S, "-o", "yaml", "--json"), "-o yaml does not work with --json"),
        ((*K8S[:-1], "-o", "yaml"), "-o yaml requires --dry-run"),
        ((*K8S[:-1], "-o", "sh"), "-o sh requires --dry-run"),
        (
            ("train", "bert-qa", "--k8s", "cpu=2", "--k8s-file", "x"),
            "--k8s is for --on k8s. --k8s-file is for --on k8s",
        ),
        (("train", "bert-qa", "--launcher", "trainjob"), "--launcher trainjob requires --on k8s"),
        (("train", "bert-qa", "--on", "nosuch"), "--on nosuch"),
        (("train", "bert-qa", "--ppn", "many"), "--ppn many: expected a number or auto"),
        (("data", "prepare", "text", "x.txt", "--out", "data", "--set", "kind=wikipedia"), "--set kind=wikipedia: "),
        (("runs", "--json", "show"), "--json has no effect before 'show'"),
        (("runs", "--inventory", "lab", "compare", "a"), "--inventory has no effect before 'compare'"),
        (("recipes", "--json", "schema"), "--json has no effect before 'schema'"),
        (("stacks", "--json", "show", "current"), "--json has no effect before 'show'"),
        (("k8s", "init", "--json"), "--json requires --apply"),
        (("image", "build", "--dry-run", "--json"), "--json does not work with --dry-run"),
    ):
        error = error_of(*arguments)
        assert error.exit_code == 2
        assert message in error.message


def test_hint_of_an_error_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "lab.yml").write_text("all: {hosts: {n1: {ansible_host: 192.0.2.1}}}\n")
    (tmp_path / "broken.yml").write_text("all:\n  hosts: [\n")
    for arguments, hint in (
        (("provision", "inventory/prod"), "`orch init prod HOST...` creates inventory/prod."),
        (("provision", "./inventory/prod/"), "`orch init prod HOST...` creates inventory/prod."),
        (("provision", "hosts.ini"), "`orch init NAME HOST...` creates inventory/NAME. Included"),
        (("runs", "--inventory", "lab.yml"), "orch provision ./lab.yml"),
        (("clean", "--inventory", "lab.yml"), "orch provision ./lab.yml"),
        (("nodes", "slurm"), "Its own commands list them."),
        (("nodes", "broken.yml"), "ansible-inventory -i broken.yml --list`"),
        (("train", "bert-qa", "--on", "k8s", "--image", "x"), "--nodes 4 starts four pods"),
        (("train", "bert-qa", "--set", "seed"), "--set learning_rate=1e-4"),
        (("train", "bert-qa", "--ppn", "two"), "four ranks per node: --ppn 4"),
        (("runs", "show", "last"), "`orch train` starts one."),
        (("setup", "--wheels", "nowhere"), "omit --wheels to build the bindings"),
        (("init", "lab", "alice@"), "Examples: node1, alice@node1:2222"),
        (("init", "lab", "node1:ssh"), "Examples: node1, alice@node1:2222"),
        (("init", "lab", "node1", "node[1-2]"), "hosts that a range includes"),
        (("recipes", "new", "bert-qa"), "Choose another name: my-recipe."),
        (("image", "build", "--engine", "no-such-engine"), "--engine podman, or install docker"),
    ):
        paths = tuple(f"./{argument}" if argument.endswith(".yml") else argument for argument in arguments)
        assert hint in error_of(*paths).hint
    listed = orch("nodes", "./lab.yml")
    assert "unknown" in listed.stdout
    assert "hint: orch provision ./lab.yml" in listed.stderr


def test_setting_of_a_wrong_type_is_refused_before_anything_starts() -> None:
    for target in ((), ("--on", "k8s", "--nodes", "2", "--image", "x")):
        arguments = ("train", "bert-qa", *target, "--set")
        error = error_of(*arguments, "num_train_epochs=abc")
        assert error.message == "--set num_train_epochs=abc: not a number."
        assert "Its default is 6." in error.hint
        assert "Did you mean 'num_train_epochs'?" in error_of(*arguments, "num_train_epoch=3").hint


def test_unknown_option_may_belong_to_the_script() -> None:
    error = error_of("train", "own.py", "--epochs", "3")
    assert "No such option: --epochs" in error.message
    assert "go after --: orch train script.py -- --epochs 3." in error.hint
    assert "--nodes" in error_of("train", "own.py", "--node", "3").message
    assert "after --" not in orch("runs", "--epochs", "3").stderr


def test_arguments_after_a_recipe_name_are_refused() -> None:
    """Reject them at once; the ranks would refuse them only after 15 seconds."""
    error = error_of("train", "bert-qa", "learning_rate=1e-4")
    assert "Unexpected argument 'learning_rate=1e-4'" in error.message
    assert "--set learning_rate=1e-4" in error.hint
    script_arguments = ("train", "own.py", "--backend", "gloo", "--dry-run")
    assert orch(*script_arguments, "data.csv").exit_code == 0
    assert orch(*K8S, "--", "--seed", "3").exit_code == 0


def test_plan_is_a_manifest_for_pods_and_a_script_for_nodes() -> None:
    script_arguments = ("train", "own.py", "--backend", "gloo", "--dry-run")
    error = error_of(*script_arguments, "-o", "yaml")
    assert "-o yaml requires --on k8s: this plan is a shell script" in error.message
    assert json.loads(orch(*script_arguments, "--json").stdout)["kind"] == "plan"
    assert "kind: TrainJob" in orch(*K8S, "-o", "yaml").stdout


def test_settings_file_of_kubernetes_is_ignored_for_runs_on_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_K8S_FILE", "/nonexistent")
    result = orch("train", "own.py", "--backend", "gloo", "--dry-run")
    assert result.exit_code == 0, result.exception
    assert "/nonexistent" in error_of(*K8S).message


def test_help_shows_options_of_the_selected_target_only() -> None:
    for arguments in ((), ("--on", "k8s"), ("--on=slurm",), ("--on", "pbs")):
        titles = {entry.options.on: entry.title for entry in registry.entries().values()}
        shown = {target: title for target, title in titles.items() if arguments and arguments[-1].endswith(target)}
        hidden = {target: title for target, title in titles.items() if target not in shown}
        text = orch("train", *arguments, "--help").stdout
        panels = ["What", "Where", "Ranks", "Precision", "Restarts", "Image", *shown.values(), "Output"]
        positions = [text.index(f"─ {name} ─") for name in panels]
        assert positions == sorted(positions)
        for option in ("--set", "--wait", "--detach", "--ppn"):
            assert option in text
        for target, panel in hidden.items():
            assert f"─ {panel} ─" not in text
            assert f"{panel}: " in text
            assert f"train --on {target} --help" in " ".join(text.split())
        assert ": ." not in text


def test_command_line_can_run_several_times_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("recipes", "stacks"):
        monkeypatch.setattr("sys.argv", ["orch", command, "--help"])
        with pytest.raises(SystemExit) as exc_info:
            main()
        assert exc_info.value.code == 0


def test_app_of_one_command_has_the_command_of_the_whole_app() -> None:
    for name, command in typer.main.get_command(make_app()).commands.items():
        one_command = typer.main.get_command(make_app(name)).commands
        assert list(one_command) == [name]
        assert [option.opts for option in one_command[name].params] == [option.opts for option in command.params]


def test_settings_of_a_recipe_are_listed_without_those_that_set_refuses() -> None:
    rows = json.loads(orch("recipes", "show", "bert-qa", "--json").output)["settings"]
    settings = {row["name"]: row for row in rows}
    assert (settings["max_seq_length"]["type"], settings["max_seq_length"]["default"]) == ("integer", 384)
    assert settings.keys().isdisjoint({"token", "hub_token", "output_dir", "bf16", "use_ipex"})
    positions = [list(settings).index(name) for name in ("max_seq_length", "weight_decay")]
    assert positions == sorted(positions), "the arguments of transformers come last"
