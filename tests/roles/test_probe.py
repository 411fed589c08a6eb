from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.roles.modules import PLAYBOOKS, load_module


@pytest.mark.parametrize("path", ["a/b", "", "//", "/no/such/folder"])
def test_every_path_has_an_existing_parent(path: str) -> None:
    program = "import orch_probe, sys; print(orch_probe.existing_parent(sys.argv[1]))"
    command = [sys.executable, "-B", "-c", program, path]  # a process, because a wrong loop would not end
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=PLAYBOOKS / "library")
    assert os.path.isdir(done.stdout.strip()), done.stderr


def test_root_is_absolute_and_its_default_depends_on_the_user() -> None:
    home = Path("~").expanduser()
    probe = load_module("orch_probe")
    assert probe.find_root("/data/orch") == "/data/orch"
    assert probe.find_root("") == ("/opt/orch" if os.getuid() == 0 else f"{home}/orch")
    for root in ("orch", "~/orch"):
        with pytest.raises(ValueError, match="absolute path"):
            probe.find_root(root)
