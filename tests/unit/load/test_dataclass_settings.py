"""The settings that a recipe's script declares in dataclasses."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.model.recipe import Recipe, Setting, as_arguments

RECIPE_FILE = """summary = "s"
script = "train.py"
dataclasses = ["Settings"]

[precisions]
fp32 = []

[settings]
rate = 0.1
"""
SCRIPT = """
from shared import Base as SharedSettings
import not_installed

@not_installed.dataclass(kw_only=True)
class Settings(SharedSettings):
    rate: float = 0.5  # Learning rate; 0: none.
    steps: int | None = None
    flag: "Optional[bool]" = field(
        default=False,
        metadata={"help": "A switch."},
    )
    files: list[int] = field(default_factory=list)
    maybe: bool | None = None
    kind: Literal["a", "b"] = option("a", "One of two.")
    computed: int = 2 * 3
    required: int
    limit: ClassVar[int] = 3
    internal: int = field(default=1, init=False)
    _ignored = 3
"""
SHARED = """
from transformers import Seq2SeqTrainingArguments

class Base(Seq2SeqTrainingArguments):
    rate: int = 1
    seed: int = 7
"""

MakeRecipe = Callable[..., Recipe]


@pytest.fixture
def make_recipe(tmp_path: Path) -> MakeRecipe:
    """Return a function that writes and loads a recipe."""

    def make(script: str = SCRIPT, shared: str = SHARED, recipe_file: str = RECIPE_FILE) -> Recipe:
        for name, text in {"train.py": script, "shared.py": shared, "recipe.toml": recipe_file}.items():
            (tmp_path / name).write_text(text)
        return load.recipe(str(tmp_path))

    return make


def test_fields_are_read_with_type_default_and_description(make_recipe: MakeRecipe) -> None:
    declared = make_recipe().declared
    assert {
        name: declared[name] for name in ("rate", "steps", "flag", "maybe", "files", "kind", "computed", "required")
    } == {
        "rate": Setting("number", 0.5, "Learning rate; 0: none."),
        "steps": Setting("integer"),
        "flag": Setting("switch", False, "A switch."),
        "maybe": Setting("switch", needs_value=True),
        "files": Setting(),
        "kind": Setting("text", "a", "One of two.", choices=("a", "b")),
        "computed": Setting("integer"),
        "required": Setting("integer"),
    }
    assert not {"limit", "internal", "_ignored"} & declared.keys()


def test_inherited_fields_are_settings(make_recipe: MakeRecipe) -> None:
    declared = make_recipe().declared
    assert declared["seed"] == Setting("integer", 7)
    assert declared["save_total_limit"].type == "integer"


def test_fields_are_overridden_in_the_order_of_python(make_recipe: MakeRecipe) -> None:
    script = """
class Root:
    a: int = 0
    b: int = 0
class First(Root):
    a: int = 1
class Second(Root):
    a: int = 2
    b: int = 2
class Settings(First, Second):
    c: tuple = (1, 2)
"""
    defaults = {name: setting.default for name, setting in make_recipe(script).declared.items() if name != "rate"}
    assert defaults == {"a": 1, "b": 2, "c": None}


def test_values_of_recipe_file_are_defaults_with_the_types_of_the_fields(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(recipe_file=RECIPE_FILE.replace("rate = 0.1", "rate = 1"))
    assert recipe.settings(None, {}) == {"rate": 1}
    recipe.check_types({"rate": "2.5"})


def test_class_of_another_module_is_named_with_its_module(make_recipe: MakeRecipe) -> None:
    text = RECIPE_FILE.replace("0.1", "2")
    recipe = make_recipe(recipe_file=text.replace('"Settings"', '"shared:Base"'))
    assert recipe.declared["seed"] == Setting("integer", 7)
    assert "flag" not in recipe.declared
    make_recipe(recipe_file=text.replace('"Settings"', '"Settings", "shared:Base"'))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({"script": "class Setting:\n    a: int\n"}, "no class 'Settings' with fields", id="no class"),
        pytest.param({"script": "class Settings:\n    pass\n"}, "no class 'Settings' with fields", id="no fields"),
        pytest.param({"script": "class Settings(Settings): pass\n"}, "no class 'Settings'", id="own base"),
        pytest.param({"script": "from train import Settings\n"}, "no class 'Settings'", id="import of itself"),
        pytest.param(
            {"recipe_file": RECIPE_FILE.replace('"Settings"', '"nowhere:Base"')}, "'nowhere:Base'", id="no module"
        ),
        pytest.param({"shared": "class Base(:\n"}, r"shared\.py: line 1: invalid syntax", id="syntax"),
        pytest.param({"shared": "\0"}, r"shared\.py: ", id="no text"),
    ],
)
def test_unusable_class_is_rejected(make_recipe: MakeRecipe, files: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_recipe(**files)


def test_missing_script_is_named(make_recipe: MakeRecipe) -> None:
    for classes in ('dataclasses = ["Settings"]', ""):
        text = RECIPE_FILE.replace("train.py", "other.py").replace('dataclasses = ["Settings"]', classes)
        with pytest.raises(RequestError, match=r"script: there is no file 'other\.py'"):
            make_recipe(recipe_file=text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("rate = 0.1", 'rate = "high"', "settings.rate = high: not a number", id="type of a default"),
        pytest.param(
            "[settings]",
            "[presets.full]\nsteps = 1.5\n[settings]",
            "presets.full.steps = 1.5: not a whole number",
            id="type in a preset",
        ),
        pytest.param("[precisions]", "paths = ['file']\n[precisions]", "paths: .*no setting 'file'", id="path"),
        pytest.param("[settings]", "[presets.full]\nstep = 3\n[settings]", "Did you mean 'steps'", id="preset"),
        pytest.param("[settings]", "[excludes]\nrate = ['step']\n[settings]", "excludes.rate: .*'step'", id="exclude"),
        pytest.param(
            "[settings]", "[presets.full]\nkind = 'c'\n[settings]", "presets.full.kind = c: not a or b", id="choice"
        ),
        pytest.param("fp32 = []", "", "precisions: .*at least 1 item", id="no precision"),
        pytest.param("fp32 = []", "fp23 = []", "precisions.fp23: expected 'bf16' or 'fp32'", id="unknown precision"),
    ],
)
def test_recipe_file_must_match_the_settings(make_recipe: MakeRecipe, old: str, new: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        make_recipe(recipe_file=RECIPE_FILE.replace(old, new))
    assert re.search(message, f"{caught.value} {caught.value.hint}"), caught.value


def test_only_the_values_of_a_literal_are_accepted(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(
        "class Settings:\n    rate: float = 1\n    bits: Optional[typing.Literal[4, 8]] = None\n    one: Literal['x']\n"
    )
    recipe.check_types({"bits": "8", "one": "x"})
    with pytest.raises(RequestError, match="--set bits=16: not 4 or 8"):
        recipe.check_types({"bits": "16"})
    with pytest.raises(RequestError, match="--set one=y: not x"):
        recipe.check_types({"one": "y"})


def test_switches_that_may_be_none_are_passed_with_their_value(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    switches = {"maybe": True, "flag": True, "greater_is_better": True, "do_train": True}
    arguments = as_arguments(recipe.settings(None, switches))
    assert arguments[1:] == ("--maybe=true", "--flag", "--greater_is_better=true", "--do_train")


def test_settings_of_orch_are_known_without_torch() -> None:
    code = "import sys; from orchestrator import load; print(len(load.recipe('bert-qa').declared)); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, modules = done.stdout.splitlines()
    assert int(count) > 100
    assert not {"torch", "transformers"} & {*modules.split()}
