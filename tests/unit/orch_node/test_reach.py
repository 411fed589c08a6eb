"""The folder of shared connections is removed, also after its supervisor was killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from orch_node import reach
from orch_node.reach import START_MARKER, StartFilter, program_errors, shell_command

from orchestrator.files import LIB
from tests.conftest import report_missing


def test_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(reach.SOCKETS, raising=False)
    program = (
        "import os; from orch_node import reach; reach.share_connections(); "
        "print(os.environ[reach.SOCKETS], flush=True); input()"
    )
    environment = {**os.environ, "PYTHONPATH": str(LIB)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        folder = Path(process.stdout.readline().strip())
        (folder / "socket").touch()
        os.utime(folder, (0, 0))
        reach.remove_unused(folder)
        assert folder.is_dir()
        process.kill()
    os.utime(folder, (0, 0))
    reach.share_connections()
    assert not folder.exists()
    own_folder = Path(os.environ[reach.SOCKETS])
    assert own_folder.is_dir()
    reach.end_sharing()
    assert not own_folder.exists()


ARGUMENTS = (
    *("a'b", "c\\d\\0", "e!f", '$HOME `id` "q"', "line\nbreak", "ü\udcff"),
    *("-", "*?", "{a,b}", "~", "", "%s"),
)
BANNER = b'{"schema": 1}\nprompt> '


def test_any_shell_passes_arguments_unchanged() -> None:
    for shell in ("sh", "bash", "csh", "fish", "zsh"):
        if not shutil.which(shell):
            report_missing(f"no {shell}: tests/prepare installs csh and fish")
        long_argument = "it's" * 5000  # longer than csh reads a word
        command = shell_command(("printf", "%s|", *ARGUMENTS, long_argument))
        done = subprocess.run([shell, "-c", command], capture_output=True, check=True)
        expected = "".join(f"{argument}|" for argument in (*ARGUMENTS, long_argument))
        assert StartFilter().output(done.stdout) == expected.encode(errors="surrogateescape")
        assert done.stderr == START_MARKER


def test_shell_that_shows_its_commands_does_not_print_the_marker_early() -> None:
    done = subprocess.run(["bash", "-vxc", shell_command(("echo", "done"))], capture_output=True, check=True)
    assert done.stderr.count(START_MARKER) == 1
    assert "done" not in program_errors(done.stderr.decode())


def test_program_replaces_the_shell_and_returns_its_exit_code() -> None:
    script = f"trap 'echo bye' EXIT\n{shell_command(('sh', '-c', 'echo done; exit 7'))}"
    done = subprocess.run(["bash", "-c", script], capture_output=True)
    assert (done.returncode, done.stdout) == (7, START_MARKER + b"done\n")


def test_filter_drops_what_precedes_the_marker_however_it_is_divided() -> None:
    for size in (1, 7, 1000):
        content = BANNER + START_MARKER + bytes(range(256)) + START_MARKER
        start = StartFilter()
        parts = [start.output(content[i : i + size]) for i in range(0, len(content), size)]
        assert b"".join(parts) == bytes(range(256)) + START_MARKER
        assert (start.started, start.dropped) == (True, BANNER.decode().strip())


def test_filter_keeps_the_beginning_of_what_an_unstarted_program_printed() -> None:
    start = StartFilter()
    assert start.output(b"This account is not available." + b"x" * 10_000) == b""
    assert not start.started
    assert start.dropped.startswith("This account is not available.")
    assert len(start.dropped) <= 1000 + len(START_MARKER)
