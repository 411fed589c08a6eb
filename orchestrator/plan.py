"""Everything that will be done, as a value. `--dry-run` prints what `execute` walks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.command import Command
from orchestrator.layout import Layout
from orchestrator.recipe import Value

HEREDOC = "ORCH_END_OF_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided, and why."""

    topic: str
    value: str
    reason: str = ""

    def describe(self) -> str:
        return f"{self.topic}: {self.value}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a step happens: a node, and the OpenSSH command that reaches it, if it is another."""

    node: str
    via: tuple[str, ...] = ()

    def shell(self, text: str) -> str:
        """Shell text that runs the shell text `text` there."""
        return shlex.join([*self.via, text]) if self.via else text


def write(targets: tuple[Target, ...], path: str, source: str) -> str:
    """Shell text that writes what `source` redirects to a file on each of the targets.

    Several targets are reached alike, but for the node's name at the end.
    """
    folder = shlex.quote(str(PurePosixPath(path).parent))
    text = f"mkdir -p {folder} && cat > {shlex.quote(path)}"
    if len(targets) == 1:
        return f"{targets[0].shell(text)} {source}"
    names = shlex.join(target.via[-1] for target in targets)
    reach = shlex.join(targets[0].via[:-1])
    return f'for node in {names}; do {reach} "$node" {shlex.quote(text)} {source}\ndone'


@dataclass(frozen=True, slots=True, kw_only=True)
class PutFile:
    """Write a file of the run, the same on several nodes."""

    at: tuple[Target, ...]
    path: str
    content: str

    @property
    def targets(self) -> tuple[Target, ...]:
        return self.at

    def describe(self) -> str:
        """A shell command that writes exactly this file."""
        return write(self.at, self.path, f"<<'{HEREDOC}'\n{self.content}{HEREDOC}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFile:
    """Copy a file of this machine to nodes."""

    at: tuple[Target, ...]
    source: str
    path: str

    @property
    def targets(self) -> tuple[Target, ...]:
        return self.at

    def describe(self) -> str:
        return write(self.at, self.path, f"< {shlex.quote(self.source)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRun:
    """Start the supervisor, which starts the launcher and watches the ranks."""

    at: Target
    command: Command
    run_dir: str

    @property
    def targets(self) -> tuple[Target, ...]:
        return (self.at,)

    def describe(self) -> str:
        return self.at.shell(self.command.shell())


Step = PutFile | SendFile | StartRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of one run.

    `key` is equal for requests that ask for the same training. `run_dir` is the run's folder on
    its nodes; on this machine it may be another one. `train` and `python`: on the nodes. `created`:
    seconds since the epoch. `source`: the script on this machine; `settings` and `script_args` are
    its arguments. `fingerprints`: of the packages -> nodes.
    """

    run_id: str
    node0: Target
    nodes: tuple[Target, ...]
    run_dir: str
    train: str
    python: str
    started_by: str
    created: float
    key: str
    recipe: str
    source: str
    stack: str
    fingerprints: Mapping[str, str]
    settings: Mapping[str, Value]
    script_args: tuple[str, ...]
    resumes: bool
    output_dir: str | None
    backend: str
    precision: str
    layout: Layout
    decisions: tuple[Decision, ...]
    steps: tuple[Step, ...]

    def describe(self) -> str:
        """The plan as a shell script: its decisions as comments, its steps as commands."""
        comments = [f"# {line}" for line in self.summary()]
        return "\n".join([*comments, *(step.describe() for step in self.steps)]) + "\n"

    def summary(self) -> list[str]:
        """The decisions with their reasons, one line each, and the place of every rank."""
        places = [place.describe() for place in self.layout.places]
        return [*(decision.describe() for decision in self.decisions), *places]
