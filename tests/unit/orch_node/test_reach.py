"""Start programs on nodes through any login shell, and skip what the shell prints."""

from __future__ import annotations

import shutil
import subprocess

from orch_node.reach import START_MARKER, StartFilter, shell_command

from tests.conftest import report_missing

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
