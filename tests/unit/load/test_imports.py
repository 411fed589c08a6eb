"""Find the modules that a script imports and its project does not have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.errors import RequestError
from orchestrator.load.files import read_table
from orchestrator.load.scripts import DISTRIBUTIONS, RanksPython, read_imports
from orchestrator.model.project import Imports, Project
from orchestrator.model.recipe import Recipe
from tests.support.files import write_files


def imports_of(folder: Path, text: str) -> dict[str, str]:
    (folder / "train.py").write_text(text)
    recipe = Recipe(name="train", script=str(folder / "train.py"), own_script=True)
    return dict(read_imports(recipe, recipe.script, RanksPython(version="3.11", local_path=sys.executable)).importers)


def test_import_that_may_succeed_is_not_reported(tmp_path: Path) -> None:
    for text in (
        "import os, sys, json.decoder\nfrom __future__ import annotations",  # standard library
        "from orch_node import report\nimport orch_training",  # modules of orch
        "try:\n    import einops\nexcept ImportError:\n    einops = None",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import einops",
        "def main():\n    import einops\nmain()",  # function
        "import sys\nsys.path.insert(0, 'lib')\nimport einops",
        "import sys\nsys.modules['einops'] = sys\nimport einops",  # replaced module
        "import subprocess as s\ns.run(['x', '-m', 'pip', 'install'])\nimport einops",  # pip as list
        "import einops (",  # syntax error
        "import near, package, package.inner, compiled, generated, plain.more",  # next to the script
    ):
        names = ("near.py", "package/__init__.py", "package/inner.py", "generated.pyx", "plain/more.py")
        write_files(tmp_path, dict.fromkeys((*names, "compiled.cpython-311-x86_64-linux-gnu.so"), ""))
        assert imports_of(tmp_path, text) == {}


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
        script, folder = str(tmp_path / "train.py"), str(tmp_path / "packages")
        recipe = Recipe(name="train", script=script, own_script=True, project=project, source_folder=folder)
        python = RanksPython(version="3.11", local_path=local_path, packages={"some-package": "1"})
        assert list(read_imports(recipe, recipe.script, python).importers) == missing
        Path("packages/more.pth").touch()
        assert read_imports(recipe, recipe.script, python).importers == {}, "the file may add a folder with the modules"
        Path("packages/more.pth").unlink()


def test_error_names_the_importing_files_and_the_lines_to_paste() -> None:
    importers = {"pgk": "train.py", "x": "net/a.py"}
    imports = Imports(importers=importers, source="stack current")
    imports.check(["torch", "rm -rf /"])
    with pytest.raises(RequestError, match=r"^train\.py imports pgk; net/a\.py imports x, which stack current"):
        imports.check(["pgk", "x"])
    imports = Imports(
        importers={"cv2": "train.py", "einops_exts": "train.py"},
        source="stack current",
        distributions=read_table(DISTRIBUTIONS),
    )
    with pytest.raises(RequestError) as caught:
        imports.check(["cv2", "einops_exts"])
    lines = '# /// script\n# dependencies = ["opencv-python-headless", "einops-exts"]\n# ///'
    assert caught.value.hint.endswith(f"\n{lines}")
