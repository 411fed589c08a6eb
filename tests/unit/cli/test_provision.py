"""The sudo password of `orch provision --ask-become-pass`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.provision import become_password

READ = "import sys; from ansible.cli import CLI; print(CLI.get_password_from_file(sys.argv[1]))"


def test_ansible_reads_the_password_from_a_file_that_is_in_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no file can stay in a folder when a signal ends the program."""
    monkeypatch.setattr("getpass.getpass", lambda prompt: "open-sesame")
    with become_password(is_interactive=True) as variables:
        (path,) = map(Path, variables.values())
        process = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True)
        assert process.stdout == "open-sesame\n", process.stderr
        assert path.stat().st_nlink == 0
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
