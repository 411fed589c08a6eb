"""Find the packages that a user's script requires."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RequestError
from orchestrator.load.clusters import common_requirements
from orchestrator.load.requirements import requirements_of, with_image_requirements
from orchestrator.model.recipe import Recipe
from orchestrator.planning.request import TrainRequest
from orchestrator.stacks.stack import Stack
from tests.support.files import write_files

INLINE = '# /// script\n# requires-python = ">=3.10"\n# dependencies = [\n#   "einops>=0.8",  # why\n# ]\n# ///\n'
PYPROJECT = """[project]
name = "my-model"
dependencies = ["hydra-core"]
[project.optional-dependencies]
eval = ["rouge"]
All = ["my_model[eval]", "tensorboard"]
"""


WriteScript = Callable[..., Recipe]


def make_request(requirements: str | None = None, **options: Any) -> TrainRequest:
    return TrainRequest(recipe="train.py", requirements=requirements, **options)


@pytest.fixture
def script(tmp_path: Path) -> WriteScript:
    """Return a function that writes a script below a repository, and other files of it."""

    def make(text: str = "", **files: str) -> Recipe:
        contents = {name.replace("_DOT_", "."): content for name, content in files.items()}
        write_files(tmp_path, {".git/config": "", "tools/train.py": text, **contents})
        return Recipe(name="train", script=str(tmp_path / "tools/train.py"), own_script=True)

    return make


def test_metadata_of_a_script_precedes_the_project(script: WriteScript) -> None:
    recipe = script("\ufeff# /// script\n# requires-python = '>=3.99'\n# ///\n")
    assert requirements_of(recipe, make_request()).python == ">=3.99"
    recipe = script(INLINE + "import einops\n", pyproject_DOT_toml=PYPROJECT)
    result = requirements_of(recipe, make_request())
    assert (result.source, result.lines, result.python) == ("train.py", ("einops>=0.8",), ">=3.10")
    assert requirements_of(recipe, make_request("none")) is None
    result = requirements_of(recipe, make_request(packages=("peft", "rouge==1")))
    assert (result.source, result.lines) == ("train.py and --with", ("einops>=0.8", "peft", "rouge==1"))
    result = requirements_of(recipe, make_request("none", packages=("peft",)))
    assert (result.source, result.lines) == ("--with", ("peft",))


def test_dependencies_of_the_project_with_its_extras_and_locked_versions(script: WriteScript, tmp_path: Path) -> None:
    lock = (
        '[[package]]\nname = "hydra-core"\nversion = "1.3.2"\nsource = { registry = "https://pypi.org/simple" }\n'
        '[[package]]\nname = "my-model"\nversion = "0.1"\nsource = { editable = "." }\n'
    )
    recipe = script(pyproject_DOT_toml=PYPROJECT, uv_DOT_lock=lock)
    result = requirements_of(recipe, make_request(extra=("all",)))
    assert result.lines == ("hydra-core", "tensorboard", "rouge")
    assert result.preferred == ("hydra-core==1.3.2",)
    assert result.source == str(tmp_path / "pyproject.toml")
    assert not result.uv_sources
    recipe = script(pyproject_DOT_toml=PYPROJECT.replace('"hydra-core"', "") + "[tool.uv.sources]\nMy_Lib.path = '.'\n")
    result = requirements_of(recipe, make_request(extra=("eval",)))
    assert (result.lines, result.uv_sources) == (("rouge",), {"my-lib": str(tmp_path / "pyproject.toml")})
    with pytest.raises(RequestError, match="no such extra") as error:
        requirements_of(recipe, make_request(extra=("evaluate",)))
    assert "'eval'" in error.value.hint


def test_nothing_above_the_repository_is_read(script: WriteScript, tmp_path: Path) -> None:
    recipe = script()
    (tmp_path.parent / "pyproject.toml").write_text(PYPROJECT)
    try:
        assert requirements_of(recipe, make_request()) is None
        with pytest.raises(RequestError, match=r"no pyproject.toml is used"):
            requirements_of(recipe, make_request(extra=("eval",)))
    finally:
        (tmp_path.parent / "pyproject.toml").unlink()


def test_a_file_replaces_other_sources_and_includes_files(script: WriteScript, tmp_path: Path) -> None:
    recipe = script(
        INLINE, pyproject_DOT_toml=PYPROJECT, base_DOT_txt="\ufeff# comment \\\npeft == 0.9 \\\n  --hash=sha256:00\n"
    )
    lines = "-r base.txt\n-c limits.txt\n-f .\n--index-url https://host/simple#x\nrich # why\n"
    write_files(tmp_path, {"limits.txt": "tqdm<5\n", "all.txt": lines})
    result = requirements_of(recipe, make_request(str(tmp_path / "all.txt")))
    assert [line.split() for line in result.lines] == [
        ["peft", "==", "0.9", "--hash=sha256:00"],
        ["--find-links", str(tmp_path)],
        ["--index-url", "https://host/simple#x"],
        ["rich"],
    ]
    assert result.constraints == ("tqdm<5",)


def test_packages_of_the_inventory_are_added_to_those_of_the_script(script: WriteScript, tmp_path: Path) -> None:
    recipe = script(INLINE, all_DOT_txt="rich<15\n-c limits.txt\n", limits_DOT_txt="pygments<3\n")
    common_file = common_requirements(tmp_path, {"a": {"orch_requirements": "all.txt"}})
    result = requirements_of(recipe, make_request(), common_file=common_file)
    assert (result.lines, result.constraints) == (("einops>=0.8", "rich<15"), ("pygments<3",))
    assert result.source == f"train.py and {tmp_path / 'all.txt'}"
    assert requirements_of(recipe, make_request("none"), common_file=common_file) is None
    with pytest.raises(RequestError, match="orch_requirements differs"):
        common_requirements(tmp_path, {"a": {"orch_requirements": "all.txt"}, "b": {}})


def test_packages_that_an_image_must_contain_are_named(script: WriteScript, test_stack: Stack, tmp_path: Path) -> None:
    recipe = script(INLINE.replace("[\n", '[\n#   "torch",\n'))
    result = with_image_requirements(recipe, make_request(), test_stack, "image")
    assert result.image_requirements == "einops>=0.8 (train.py)"
    assert result.environment == {"ORCH_IMAGE_PACKAGES": "einops"}
    assert with_image_requirements(recipe, make_request("none"), test_stack, "image") == recipe
    common_file = tmp_path / "common.txt"
    lines = "--index-url https://i\npeft==1 --hash=sha256:ab\nq @ https://a:word@h/q\npywin32; sys_platform=='win32'\n"
    common_file.write_text(lines)
    result = with_image_requirements(recipe, make_request(), test_stack, "image", common_file=str(common_file))
    packages = "einops>=0.8, peft==1, q @ https://a:<masked>@h/q"
    # Older versions of packaging write q@.
    assert result.image_requirements.replace("q@", "q @") == f"{packages} (train.py and {common_file})"
    with pytest.raises(RequestError, match="the ranks run in image"):
        with_image_requirements(recipe, make_request("needs.txt"), test_stack, "image")


def test_wrong_lines_of_a_file_are_named(script: WriteScript, tmp_path: Path) -> None:
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    for text, message in (
        ("einops=>1", "'einops=>1' is not a requirement"),
        ("-e .", "'-e .' is a folder or file of this machine"),
        ("-r bad.txt", "includes itself"),
        ("-r loop.txt", "loop.txt cannot be read: Too many levels"),
        ("https://me:pa55word@h/a --hash=sha256:00", r"'https://me:<masked>@h/a --hash=sha256:00' is not"),
        ("-r other.txt", r"other.txt cannot be read: No such file"),
        ("# /// script\n# dependencies = [\n# ///\n", "the block .* of .*train.py: Invalid value"),
        (f"{INLINE}\n{INLINE}", "2 blocks"),
    ):
        (tmp_path / "bad.txt").write_text(text)
        is_script = text.startswith("# /// script")
        recipe, request = script(text if is_script else ""), None if is_script else str(tmp_path / "bad.txt")
        with pytest.raises(RequestError, match=message):
            requirements_of(recipe, make_request(request))
