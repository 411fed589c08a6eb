"""Folders from which `orch train` runs on this machine, or on hosts in namespaces of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import orch_environment, report_missing, run_orch_in
from tests.local.runs import write_script
from tests.support import hosts, matrix


class Workspace:
    """A folder, a controller without earlier runs, and the options that select the nodes."""

    def __init__(self, folder: Path, *options: str, lab: hosts.Hosts | None = None) -> None:
        self.folder = folder
        self.options = options
        self._lab = lab

    @property
    def lab(self) -> hosts.Hosts:
        """Return the hosts that the options select."""
        assert self._lab is not None, "this workspace has no hosts but this machine"
        return self._lab

    def train(self, script: str, *arguments: str, code: int = 0) -> matrix.Cell:
        """Run a script to its end and check orch's exit code; script arguments follow "--"."""
        split = arguments.index("--") if "--" in arguments else len(arguments)
        options = (*arguments[:split], *self.options, "--json")
        process = self.orch("train", script, *options, *arguments[split:])
        assert process.stdout.startswith("{"), process.stderr
        cell = matrix.Cell.from_report(process.returncode, json.loads(process.stdout))
        assert cell.code == code, (cell.report, cell.logs)
        return cell

    def train_text(self, text: str, *arguments: str, code: int = 0) -> matrix.Cell:
        """Write a script into the folder and run it to its end."""
        return self.train(str(self.folder / write_script(self.folder, text)), *arguments, code=code)

    def orch(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_orch_in(self.folder, *arguments, timeout=180)


@contextmanager
def make_hosts(
    folder: Path,
    *options: str,
    count: int = 2,
    variables: Mapping[str, str] | None = None,
    shells: Sequence[hosts.LoginShell] = (),
) -> Iterator[Workspace]:
    """Start hosts on this machine, and end them afterwards.

    Args:
        folder: of the workspace.
        options: of each `orch train`.
        count: how many hosts.
        variables: the environment of programs that ssh starts there.
        shells: the login shells of the first hosts.
    """
    if reason := hosts.missing_requirements():
        report_missing(reason)
    lab = hosts.Hosts(folder / ".hosts", count, variables, shells)
    try:
        inventory = lab.write_inventory(orch_environment(folder))
        yield Workspace(folder, *options, "--inventory", str(inventory), lab=lab)
    finally:
        lab.stop()
