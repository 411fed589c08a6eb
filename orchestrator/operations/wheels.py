"""Fill a wheelhouse with the wheels of a stack, by pip and its own configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.errors import ExecuteError
from orchestrator.files import PUBLIC, sha256, write_whole
from orchestrator.provisioning.pip import command, without_passwords
from orchestrator.stacks.downloads import Download, WheelSources, explain_failure, plan_downloads
from orchestrator.stacks.stack import Stack

HASHES = "hashes.json"


def fetch(
    stack: Stack,
    folder: Path,
    *,
    stacks: Sequence[Stack],
    sources: WheelSources,
    python: str | None = None,
    any_torch: bool = False,
    tell: Callable[[str], None] = print,
) -> dict[str, str]:
    """Download the stack's wheels; -> file name -> SHA-256, also in FOLDER/hashes.json.

    Raises ExecuteError that names the wheel that is missing, and what could serve instead.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExecuteError(
            f"{folder} cannot be made: {error.strerror}.", hint="Name a folder that you may write."
        ) from None
    plan = plan_downloads(stack, str(folder), sources=sources, python=python, any_torch=any_torch)
    for download in plan:
        tell(f"fetching {', '.join(download.packages)}")
        run_pip(stack, download, stacks)
    hashes = {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name != HASHES}
    value = {"schema": 1, "stack": stack.name, "sha256": hashes}
    write_whole(folder / HASHES, json.dumps(value, indent=1) + "\n", mode=PUBLIC)
    return hashes


def run_pip(stack: Stack, download: Download, stacks: Sequence[Stack]) -> None:
    """pip's own words go to standard error; its log says more, and serves the error."""
    with tempfile.TemporaryDirectory(prefix="orch-pip-") as folder:
        log = Path(folder) / "pip.log"
        arguments, secrets = without_passwords([*download.arguments, *download.packages])
        asked = command("download", f"--log={log}", *arguments)
        done = subprocess.run(asked, stdout=sys.stderr, env=os.environ | secrets)
        if done.returncode != 0:
            words = log.read_text(errors="replace") if log.exists() else ""
            found = explain_failure(stack, download, words, stacks)
            raise ExecuteError(found.message, hint=found.hint)
