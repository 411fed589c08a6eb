"""The settings of a recipe, as the argument parser of its script knows them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.load.scripts import check_script_arguments, with_parser
from orchestrator.model.recipe import Recipe, Setting, as_arguments
from tests.support.files import write_files

RECIPE_FILE = """summary = "s"
script = "train.py"

[precisions]
fp32 = []

[settings]
rate = 1
"""
SCRIPT = """
import argparse
import sys
from shared import add_steps

print("text that is not JSON")
assert "json" not in sys.argv
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--rate", type=float, default=0.5, help="Learning rate.  100%% of it.")
parser.add_argument("-k", "--kind", choices=["a", "b"])
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--fast", action="store_true")
parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--path", type=open)
add_steps(parser)
parser.parse_args()
raise SystemExit("the training has begun")
"""
SHARED = """
def add_steps(parser):
    parser.add_argument("--steps", type=int, default=3)
"""

MakeRecipe = Callable[..., Recipe]


@pytest.fixture
def make_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRecipe:
    """Return a function that writes a recipe and reads its settings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(script: str = SCRIPT, shared: str = SHARED, recipe_file: str = RECIPE_FILE) -> Recipe:
        texts = {"train.py": script, "shared.py": shared, "recipe.toml": recipe_file}
        return with_parser(load.recipe(str(write_files(tmp_path / "mine", texts))))

    return make


def test_arguments_have_type_default_description_and_choices(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe()
    assert recipe.declared == {
        "rate": Setting("number", 0.5, "Learning rate. 100% of it."),
        "kind": Setting("text", choices=("a", "b")),
        "batch-size": Setting("integer"),
        "fast": Setting("flag", False),
        "shuffle": Setting("flag", True, negation="no-shuffle"),
        "path": Setting("text"),
        "steps": Setting("integer", 3),
    }
    assert load.settings(["rate=2.5", "batch-size=4"], recipe) == {"rate": "2.5", "batch-size": "4"}
    for option, message in {
        "steps=1.5": "not a whole number",
        "kind=c": "not a or b",
        "fast=1": "not true or false",
        "batch_size=4": "Did you mean 'batch-size'",
    }.items():
        with pytest.raises(RequestError) as caught:
            load.settings([option], recipe)
        assert message in f"{caught.value} {caught.value.hint}"
    for options, arguments in (
        (["fast=true", "shuffle=false"], ("--rate=1", "--fast", "--no-shuffle")),
        (["fast=false", "shuffle=true"], ("--rate=1", "--shuffle")),
    ):
        assert as_arguments(recipe.settings(None, load.settings(options, recipe))) == arguments
    check_script_arguments(recipe, ["--batch-size=4", "--no-shuffle"])
    with pytest.raises(RequestError, match="knows no argument '--stepz'"):
        check_script_arguments(recipe, ["--stepz", "4"])


def test_a_script_is_run_again_only_if_a_file_has_changed(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"open({str(log)!r}, 'a').write('run ')\n{SCRIPT}"
    make_recipe(script)
    with_parser(load.recipe(str(tmp_path / "mine")))
    assert log.read_text() == "run "
    assert "epochs" in make_recipe(script, SHARED.replace('steps"', 'epochs"')).declared
    assert log.read_text() == "run run "


def test_settings_are_left_to_the_ranks_if_a_package_is_missing_here(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(f"import not_installed.anywhere\n{SCRIPT}")
    assert recipe.unchecked == (
        f"{sys.executable} has no not_installed; the script checks its arguments when the ranks start"
    )
    assert recipe.declared == {"rate": Setting()}
    assert load.settings(["anything=1", "rate=2.5"], recipe) == {"anything": "1", "rate": "2.5"}
    with pytest.raises(RequestError, match="expected KEY=VALUE"):
        load.settings(["anything"], recipe)


def test_what_does_not_match_the_parser_is_rejected(make_recipe: MakeRecipe) -> None:
    for files, message in (
        ({"script": "import argparse\ndef x(:\n"}, r"train\.py, line 2: SyntaxError: "),
        ({"shared": "1 / 0\n"}, r"shared\.py, line 1: ZeroDivisionError: division by zero\."),
        ({"recipe_file": RECIPE_FILE.replace("rate = 1", 'rate = "high"')}, "settings.rate=high: not a number"),
        ({"recipe_file": RECIPE_FILE + "[presets.full]\nkind = 'c'\n"}, "presets.full.kind=c: not a or b"),
        ({"recipe_file": "paths = ['file']\n" + RECIPE_FILE}, "paths.file: .*no argument '--file'.* Or declare it in"),
        ({"recipe_file": RECIPE_FILE + "[presets.full]\nstep = 3\n"}, "Did you mean 'steps'"),  # name in a preset
        ({"recipe_file": RECIPE_FILE + "[excludes]\nrate = ['step']\n"}, "excludes.rate.step: .*'steps'"),
    ):
        with pytest.raises(RequestError) as caught:
            make_recipe(**files)
        assert re.search(message, f"{caught.value} {caught.value.hint}"), caught.value


def test_orch_itself_imports_no_torch() -> None:
    code = "import sys; from orchestrator import load; load.recipe('bert-qa'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers"} & {*done.stdout.split()}
