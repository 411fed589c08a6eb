"""Read the packages of a Python environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from orch_node.standalone.facts import package_folders, packages

from orchestrator.paths import STANDALONE
from tests.support.environments import make_environment


def test_metadata_of_wheels_conda_and_development_is_read(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.12/site-packages"
    for name in ("Typing_Extensions-4.1.dist-info", "torch-2.8.0-py3.12.egg-info", "own.egg-info"):
        (site / name).mkdir(parents=True)
    assert packages(package_folders(tmp_path)) == {"torch": "2.8.0", "typing-extensions": "4.1"}


def test_packages_of_an_interpreter_are_those_that_it_imports(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "environment")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "einops-0.8.dist-info").mkdir(parents=True)
    (environment / "elsewhere.pth").write_text(f"{elsewhere}\n")
    program = (STANDALONE / "facts.py").read_text()
    python = str(tmp_path / "environment/bin/python")
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["packages"] == {"einops": "0.8"}
