"""Check in a trace of a run that its records survive a power failure.

The content of a file may be lost until fsync() of the file, and its name until fsync() of its folder.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import ORCH, require_program
from tests.local.runs import expect_exit, run_in, write_script

CALLS = "rename,renameat,renameat2,fsync"
STRACE = ("strace", "-f", "-y", "--seccomp-bpf", "-qq", "-e", "signal=none", "-e", f"trace={CALLS}")
RENAME = re.compile(r'rename\w*\((?:\w+<([^>]*)>, )?"([^"]*)", (?:\w+<[^>]*>, )?"([^"]*)"')
SYNC = re.compile(r"fsync\(\d+<([^>]*)>")


def test_files_are_synced_before_they_are_renamed(tmp_path: Path) -> None:
    """Trace controller, supervisor, agent and ranks."""
    require_program("strace")
    trace = tmp_path / "trace"
    train = ("train", write_script(tmp_path), "--ppn", "1", "--launcher", "torchrun", "--backend", "gloo")
    expect_exit(run_in(tmp_path, *STRACE, "-o", str(trace), *ORCH, *train))
    lines = trace.read_text(encoding="latin-1").splitlines()
    synced = [match[1] if (match := SYNC.search(line)) else "" for line in lines]
    renamed = set()
    for index, line in enumerate(lines):
        if match := RENAME.search(line):
            source, target = (Path(match[1] or tmp_path, name) for name in match.groups()[1:])
            if target.is_relative_to(tmp_path / "runs"):
                assert str(source) in synced[:index], source
                assert str(target.parent) in synced[index:], target
                renamed.add(target.name)
    assert renamed >= {"plan.json", "run.json", "layout.json", "supervisor.json", "outcome.json"}
