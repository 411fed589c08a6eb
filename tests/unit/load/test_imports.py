"""Find the modules that a script imports and its project does not have."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from orchestrator.errors import RequestError
from orchestrator.load.scripts import (
    Files,
    RanksPython,
    check_relative_imports,
    check_script,
    check_syntax,
    external_imports,
    read_imports,
)
from orchestrator.model.project import Imports, Project
from orchestrator.model.recipe import Recipe
from orchestrator.planning.request import TrainRequest
from tests.support.files import write_files


def imports_of(folder: Path, text: str, *available: str) -> dict[str, str]:
    script = folder / "train.py"
    script.write_text(text)
    return external_imports(script, Files(None), folder, available.__contains__)


def test_import_that_may_succeed_is_not_reported(tmp_path: Path) -> None:
    for text in (
        "import os, sys, json.decoder\nfrom __future__ import annotations",  # standard library
        "from orch_node import report\nimport orch_training",  # modules of orch
        "try:\n    import einops\nexcept ImportError:\n    einops = None",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import einops",
        "def main():\n    import einops\nmain()",  # function
        "with suppress(ImportError):\n    import einops",
        "import sys\nsys.path.insert(0, 'lib')\nimport einops",
        "from sys import path\npath.append('lib')\nimport einops",
        "import sys\nsys.modules['einops'] = sys\nimport einops",  # replaced module
        "import site\nsite.addsitedir('lib')\nimport einops",
        "import os\nos.system('pip install einops')\nimport einops",  # pip as text
        "import subprocess as s\ns.run(['x', '-m', 'pip', 'install'])\nimport einops",  # pip as list
        "import einops (",  # syntax error
        "import near, package, package.inner, compiled, generated, plain.more",  # next to the script
        "import elsewhere",  # in another folder
    ):
        names = ("near.py", "package/__init__.py", "package/inner.py", "generated.pyx", "plain/more.py")
        write_files(tmp_path, dict.fromkeys((*names, "compiled.cpython-311-x86_64-linux-gnu.so"), ""))
        assert imports_of(tmp_path, text, "elsewhere") == {}


def test_imports_of_the_script_and_of_modules_that_it_imports_are_reported(tmp_path: Path) -> None:
    texts = {
        "net/__init__.py": "import from_init",
        "net/layers.py": "from .width import WIDTH\nfrom . import depth",
        "net/width.py": "import from_width.deep as x\nimport os",
        "net/depth.py": "from from_depth import y\nfrom ..net import layers\nfrom ...above import x",
        "net/unused.py": "import from_unused",
        "helper.py": "import train, from_helper",
    }
    write_files(tmp_path, texts)
    assert imports_of(tmp_path, "from net import layers\nimport helper\nimport einops, torch") == {
        "einops": "train.py",
        "torch": "train.py",
        "from_init": "net/__init__.py",
        "from_width": "net/width.py",
        "from_depth": "net/depth.py",
        "from_helper": "helper.py",
    }
    (tmp_path / "net/width.py").write_text("import sys; sys.path.append('lib')")
    assert imports_of(tmp_path, "from net import layers\nimport einops") == {}


def test_packages_above_a_module_are_read(tmp_path: Path) -> None:
    texts = {"__init__.py": "import from_package", "train.py": "from . import train\nimport package.train"}
    module = write_files(tmp_path / "package", texts) / "train.py"
    assert external_imports(module, Files(None), tmp_path, lambda name: False) == {
        "from_package": "package/__init__.py"
    }


def test_module_that_is_not_sent_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, dict.fromkeys(("helper.py", "ignored.py", "packages/einops/__init__.py"), ""))
    Path("train.py").write_text("import helper, ignored, einops, some_package")
    for is_sent, local_path, missing in (
        (True, "", ["ignored"]),  # project on nodes
        (False, "", ["helper", "ignored"]),  # script alone on nodes
        (False, sys.executable, []),  # this machine
    ):
        project = Project(folder=str(tmp_path), files={"train.py": "", "helper.py": ""}, size=0) if is_sent else None
        recipe = Recipe(name="train", script=str(tmp_path / "train.py"), own_script=True, project=project)
        python = RanksPython(
            version="3.11",
            local_path=local_path,
            packages={"some-package": "1"},
            module_folders=(str(tmp_path / "packages"), "/missing"),
        )
        assert list(read_imports(recipe, recipe.script, python).importers) == missing
        Path("packages/more.pth").touch()
        assert read_imports(recipe, recipe.script, python).importers == {}, "the file may add a folder with the modules"
        Path("packages/more.pth").unlink()


def test_error_names_the_modules_by_the_file_that_imports_them() -> None:
    imports = Imports(importers={"einops": "train.py", "peft": "train.py", "x": "net/a.py"}, source="stack current")
    imports.check(["torch", "rm -rf /"])
    with pytest.raises(
        RequestError, match=r"^train\.py imports einops and peft; net/a\.py imports x, which stack current"
    ):
        imports.check(["x", "peft", "einops"])


def test_stack_that_is_not_installed_is_left_to_its_own_check(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import module_that_is_missing\n")
    recipe = Recipe(name="train", script=str(tmp_path / "train.py"), own_script=True)
    request = TrainRequest(recipe="train.py")

    def check(*packages: str) -> None:
        version = ".".join(map(str, sys.version_info[:2]))
        python = RanksPython(version=version, local_path=sys.executable, source="stack current", packages=packages)
        check_script(request, recipe, python)

    check("typer")
    with pytest.raises(RequestError, match="imports module_that_is_missing, which stack current does not have"):
        check("torch")


def test_error_suggests_a_module_of_the_project_or_the_lines_to_paste() -> None:
    imports = Imports(importers={"pgk": "train.py"}, source="stack current", project_modules=("train", "pkg"))
    with pytest.raises(RequestError) as caught:
        imports.check(["pgk"])
    assert caught.value.hint == "Did you mean your module 'pkg'?"
    imports = Imports(importers={"cv2": "train.py", "einops_exts": "train.py"}, source="stack current")
    with pytest.raises(RequestError) as caught:
        imports.check(["cv2", "einops_exts"])
    lines = '# /// script\n# dependencies = ["opencv-python-headless", "einops-exts"]\n# ///'
    assert caught.value.hint.endswith(f"\n{lines}")


def test_script_with_a_relative_import_is_refused_with_its_module(tmp_path: Path) -> None:
    package = tmp_path / "nets" / "big"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    script = package / "train.py"
    for content, is_refused in (
        ("import torch\nfrom .data import X\n", True),  # member
        ("from . import data\n", True),  # module
        ("try:\n    from .data import X\nexcept ImportError:\n    from data import X\n", False),  # tried
        ('__package__ = "pkg"\nfrom .data import X\n', False),  # own package
        ("import torch\n", False),  # absolute
    ):
        script.write_text(content)
        if not is_refused:
            check_relative_imports(script, ast.parse(script.read_text()))
            continue
        with pytest.raises(RequestError, match="leading dot") as caught:
            check_relative_imports(script, ast.parse(script.read_text()))
        assert caught.value.hint.endswith(f"in the folder {tmp_path}: orch train -m nets.big.train")


def test_syntax_of_a_notebook_in_a_script_is_named(tmp_path: Path) -> None:
    script = tmp_path / "colab.py"
    script.write_text("import torch\n!pip install einops\n")
    version = ".".join(map(str, sys.version_info[:2]))
    with pytest.raises(RequestError, match="line 2") as caught:
        check_syntax(str(script), RanksPython(version=version))
    assert "belong to notebooks" in caught.value.hint
