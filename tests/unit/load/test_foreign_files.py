"""Files of other tools are refused with what they are and what to name instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.load.requirements import find_pyproject, named_requirements
from orchestrator.model.recipe import Recipe

NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
CONDA_LIST = (
    "# This file may be used to create an environment using:\n# $ conda create --name <env> --file <this file>\n"
)
SCRIPTS = {
    "notebook": ("train.ipynb", NOTEBOOK, "is a notebook", "jupyter nbconvert --to script"),
    "notebook under another name": ("train.py", NOTEBOOK, "is a notebook", "jupyter nbconvert"),
    "shell": ("run.sh", "torchrun train.py --epochs 3\n", "is a shell script", "orch train train.py -- ARGUMENTS"),
    "shell by its first line": ("run", "#!/usr/bin/env bash\npython -u src/t.py\n", "a shell script", "train src/t.py"),
    "shell under the name of a script": ("train.py", "#!/bin/bash\npython t.py\n", "a shell script", "orch train t.py"),
    "Slurm": (
        "a.sh",
        "#!/bin/bash\n#SBATCH -N 2\nsrun python t.py\n",
        "job script of Slurm",
        "orch train t.py --on slurm",
    ),
    "PBS": ("a.sh", "#!/bin/bash\n#PBS -q x\nmpirun python t.py\n", "job script of PBS", "orch train t.py --on pbs"),
    "YAML": ("config.yaml", "lr: 0.1\n", "is a file of settings", "--accelerate-config"),
    "requirements": ("requirements.txt", "einops\n", "is a text file", "--requirements"),
    "program": ("train", "\x7fELF", "is a compiled program", "Name a Python script"),
}


def test_file_that_is_no_python_script_is_refused(tmp_path: Path) -> None:
    for name, text, problem, hint in SCRIPTS.values():
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(RequestError, match=problem) as caught:
            load.recipe(str(path))
        assert hint in caught.value.hint


def test_python_script_with_options_of_a_batch_system_is_run(tmp_path: Path) -> None:
    for name in ("train.py", "train"):
        path = tmp_path / name
        path.write_text("#!/usr/bin/env python3\n#SBATCH --nodes=2\nimport torch\n")
        assert load.recipe(str(path)).script == str(path)


PACKAGE_LISTS = {
    "conda": ("environment.yml", "name: x\ndependencies:\n  - einops\n", "an environment of conda", "--python PATH"),
    "conda under another name": ("env.txt", "channels:\n  - a\n", "an environment of conda", "--python PATH"),
    "conda list --export": ("c.txt", CONDA_LIST + "einops=0.8.0=pyh_0\n", "an environment of conda", "--python PATH"),
    "conda list": (
        "c.txt",
        "# packages in environment at /opt/conda:\n#\n# Name  Version  Build\neinops  0.8.0  pyh_0\n",
        "an environment of conda",
        "--python PATH",
    ),
    "conda list without its head": ("c.txt", "einops=0.8.0=pyhd8ed1ab_0\n", "an export of conda", "--python PATH"),
    "conda list --explicit": ("c.txt", "@EXPLICIT\nhttps://a/b.conda\n", "an environment of conda", "--python PATH"),
    "pipenv": ("Pipfile", '[packages]\neinops = "*"\n', "a file of pipenv", "pipenv requirements"),
    "poetry.lock": ("poetry.lock", "[[package]]\n", "the lock file of poetry", "poetry export"),
    "uv.lock": ("uv.lock", "version = 1\n", "the lock file of uv", "pyproject.toml"),
    "pylock": ("pylock.toml", 'lock-version = "1.0"\n', "is a lock file", "uv export"),
    "setup.py": ("setup.py", "import setuptools\n", "a file of setuptools", "requirements file"),
    "pip list": ("p.txt", "Package Version\n------- -------\neinops  0.8\n", "the table of `pip list`", "pip freeze"),
    "notebook": ("a.ipynb", NOTEBOOK, "a notebook", "requirements file"),
    "ssh": ("r.txt", "git@h.org:me/lib.git\n", "is not a requirement", "lib @ git+ssh://git@host/lib.git"),
    "freeze of conda": (
        "r.txt",
        "numpy @ file:///croot/numpy/work\n",
        "file of this machine",
        "pip list --format=freeze",
    ),
}


def test_package_list_of_another_tool_is_refused(tmp_path: Path) -> None:
    for name, text, problem, hint in PACKAGE_LISTS.values():
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(RequestError, match=problem) as caught:
            named_requirements(path)
        assert hint in caught.value.hint
        including = tmp_path / "including.txt"
        including.write_text(f"-r {name}\n")
        if name not in ("pylock.toml", "setup.py"):  # Their content alone does not identify them.
            with pytest.raises(RequestError, match=problem):
                named_requirements(including)


FOREIGN_TABLES = {
    "poetry": '[tool.poetry.dependencies]\npython = "^3.10"\neinops = "^0.8"\n',
    "pixi": '[tool.pixi.pypi-dependencies]\neinops = "*"\n',
    "setuptools": '[project]\nname = "a"\n[tool.setuptools.dynamic]\ndependencies = {file = ["requirements.txt"]}\n',
}


def test_dependencies_for_another_tool_are_refused(tmp_path: Path) -> None:
    for content in FOREIGN_TABLES.values():
        path = tmp_path / "pyproject.toml"
        path.write_text(content)
        recipe = Recipe(name="t", script=str(tmp_path / "t.py"), own_script=True)
        for read, source in ((find_pyproject, recipe), (named_requirements, path)):
            with pytest.raises(RequestError, match=r"lists its dependencies in \[tool\."):
                read(source)


def test_pyproject_with_tools_but_without_packages_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.poetry.dependencies]\npython = "^3.10"\n[tool.ruff]\n')
    assert find_pyproject(Recipe(name="t", script=str(tmp_path / "t.py"), own_script=True)) is None


def test_standard_dependencies_count_before_those_of_a_tool(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[project]\ndependencies = ["einops"]\n[tool.poetry.dependencies]\npeft = "^0.8"\n')
    assert named_requirements(path).lines == ("einops",)
