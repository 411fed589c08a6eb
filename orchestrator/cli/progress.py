"""Progress of a playbook on standard error, and the sudo password for it."""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.provisioning.session import Listener
from orchestrator.provisioning.task_result import TaskResult
from orchestrator.screen import print_text

PASSWORD_FILES = ("ANSIBLE_BECOME_PASSWORD_FILE", "ANSIBLE_BECOME_PASS_FILE")


@dataclass(slots=True, kw_only=True)
class Progress:
    """A printer of one line per task that took time, changed something or failed."""

    verbose: bool
    began: float = field(default_factory=time.monotonic)

    def listener(self) -> Listener:
        if self.verbose:
            return Listener(line=lambda line: print_text(line, err=True))
        return Listener(note=self.print_text, result=self.show)

    def print_text(self, text: str) -> None:
        print_text(f"[{time.monotonic() - self.began:6.1f}s] {text}", err=True)

    def show(self, result: TaskResult) -> None:
        state = "changed" if result.changed else result.state
        self.print_text(f"{result.node:<12} {result.role}: {result.task} ({result.seconds:.1f}s) {state}")


@contextlib.contextmanager
def become_password(is_interactive: bool) -> Iterator[Mapping[str, str]]:
    """Yield environment variables that pass the sudo password to Ansible, in a private file."""
    if not is_interactive:
        yield {name: os.environ[name] for name in PASSWORD_FILES if name in os.environ}
        return
    with tempfile.NamedTemporaryFile("w", prefix="orch-become-") as file:  # mode 0600
        file.write(getpass.getpass("sudo password of the nodes: ") + "\n")
        file.flush()
        yield {PASSWORD_FILES[0]: file.name}
