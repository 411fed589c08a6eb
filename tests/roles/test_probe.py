"""What the preflight looks at on a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.roles.modules import PLAYBOOKS, load_module


@pytest.mark.parametrize("path", ["orch", "a/b", ".", "", "/", "//", "/no/such/folder"])
def test_a_folder_that_is_there_is_found_above_every_path(path: str) -> None:
    program = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('probe', {str(PLAYBOOKS)!r}\n"
        "    + '/library/orch_probe.py')\n"
        "probe = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(probe)\n"
        "print(probe.existing_parent(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=20)
    assert os.path.isdir(done.stdout.strip()), done.stderr


@pytest.mark.parametrize("root", ["orch", "./orch", "~/orch", "../orch"])
def test_a_relative_folder_is_refused_in_words(root: str) -> None:
    with pytest.raises(ValueError, match="absolute path"):
        load_module("orch_probe").folder_of_orch(root)


def test_the_folder_is_the_users_or_opt() -> None:
    home = Path("~").expanduser()
    probe = load_module("orch_probe")
    assert probe.folder_of_orch("/data/orch") == "/data/orch"
    assert probe.folder_of_orch("") == ("/opt/orch" if os.getuid() == 0 else f"{home}/orch")
