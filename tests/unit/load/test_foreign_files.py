"""Files of other tools are refused with what they are and what to name instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.load.requirements import named_requirements
from tests.support.files import write_files

NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


def test_file_that_is_no_python_script_is_refused(tmp_path: Path) -> None:
    for name, text, problem, hint in (
        ("train.py", NOTEBOOK, "is a notebook", "jupyter nbconvert"),
        ("run", "#!/usr/bin/env bash\npython -u src/t.py\n", "a shell script", "orch train src/t.py"),
        ("a.sh", "#!/bin/bash\n#SBATCH -N 2\nsrun python t.py\n", "job script of Slurm", "orch train t.py --on slurm"),
        ("config.yaml", "lr: 0.1\n", "is a file of settings", "--accelerate-config"),
        ("train", "\x7fELF", "is a compiled program", "Name a Python script"),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(RequestError, match=problem) as caught:
            load.recipe(str(path))
        assert hint in caught.value.hint
    path = tmp_path / "train"
    for text in ("#!/usr/bin/env python3\n#SBATCH --nodes=2\nimport torch\n", "import torch\n"):  # sbatch runs Python
        path.write_text(text)
        assert load.recipe(str(path)).script == str(path)


def test_script_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    text = 'summary = "x"\nscript = "train.py"\nprecisions = {fp32 = []}\n'
    recipe = write_files(tmp_path / "mine", {"recipe.toml": text})
    (recipe / "train.py").symlink_to("/proc/self/mem")  # a file that even root cannot read
    for name in (str(recipe), str(recipe / "train.py")):
        with pytest.raises(RequestError, match=r"train\.py cannot be read: Input/output error"):
            load.recipe(name)


def test_package_list_of_another_tool_is_refused(tmp_path: Path) -> None:
    for name, text, problem, hint in (
        ("env.txt", "channels:\n  - a\n", "of conda", "--python PATH"),
        ("c.txt", "einops=0.8.0=pyhd8ed1ab_0\n", "of conda", "--python PATH"),
        ("poetry.lock", "[[package]]\n", "of another tool", "poetry export"),
        ("p.txt", "# list\nPackage Version\n------- -------\neinops  0.8\n", "of another tool", "pip freeze"),
        ("r.txt", "git@h.org:me/lib.git\n", "is not a requirement", "lib @ git+ssh://git@host/lib.git"),
        ("r.txt", "numpy @ file:///croot/numpy/work\n", "file of this machine", "pip list --format=freeze"),
    ):
        path, including = tmp_path / name, tmp_path / "including.txt"
        path.write_text(text)
        including.write_text(f"-r {name}\n")
        for requirements_file in (path, including):
            with pytest.raises(RequestError, match=problem) as caught:
                named_requirements(requirements_file)
            assert hint in caught.value.hint
    (tmp_path / "requirements.lock").write_text("einops==0.8.1\n")  # of rye and `uv pip compile`
    assert named_requirements(tmp_path / "requirements.lock").lines == ("einops==0.8.1",)
