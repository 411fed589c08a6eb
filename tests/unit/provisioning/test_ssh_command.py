"""The program that Ansible starts instead of ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.files import SHARE
from tests.conftest import require_program
from tests.support.files import write_program

# Acts as ssh to a host whose login shell prints; fails for the host "closed".
SSH = """#!/bin/sh
for command; do :; done
[ "$1" != closed ] || { echo "closed: Connection refused" >&2; exit 255; }
echo '{"quota": 12}'; echo warning >&2
exec sh -c "$command"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    require_program("sh")
    write_program(tmp_path / "ssh", SSH)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "ORCH_PYTHON": sys.executable}


def run_ssh(environment: dict[str, str], *arguments: str, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = str(SHARE / "playbooks" / "ssh")
    return subprocess.run([program, *arguments], env=environment, input=content, capture_output=True, timeout=60)


def test_only_the_output_of_the_command_is_passed_on(environment: dict[str, str]) -> None:
    content = os.urandom(1 << 20)
    result = run_ssh(environment, "-C", "-o", "A=b", "-oC=d", "node1", "cat; echo failed >&2; exit 7", content=content)
    assert (result.returncode, result.stdout, result.stderr) == (7, content, b"failed\n")


def test_message_of_ssh_is_passed_on_if_no_command_was_started(environment: dict[str, str]) -> None:
    result = run_ssh(environment, "closed", "true")
    assert (result.returncode, result.stdout, result.stderr) == (255, b"", b"closed: Connection refused\n")


def test_ssh_without_a_command_or_with_a_terminal_is_not_changed(environment: dict[str, str]) -> None:
    for arguments in (["-O", "echo exit"], ["-tt", "node1", "echo exit"]):
        result = run_ssh(environment, *arguments)
        assert result.stdout.endswith(b"exit\n")
        assert b"quota" in result.stdout
