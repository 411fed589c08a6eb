"""Everything that will be done, as a value. `--dry-run` prints what `execute` walks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath
from typing import Any

from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.model.command import Command
from orchestrator.model.decision import Decision
from orchestrator.model.layout import Layout
from orchestrator.model.printable import one_line
from orchestrator.model.recipe import Value
from orchestrator.planning.manifest import as_yaml

HEREDOC = "ORCH_END_OF_FILE"
SCRIPT = "job.sh"  # what a scheduler takes, in the run's folder


def heredoc(content: str) -> str:
    """A file's content as what `cat` reads: the word that ends it is no line of it."""
    lines = set(content.split("\n"))
    end = next(word for word in words_of_end() if word not in lines)
    return f"<<'{end}'\n{content}{end}"


def words_of_end() -> Iterator[str]:
    return (f"{HEREDOC}_{number}" if number else HEREDOC for number in count())


def shell_at(node: RunNode, text: str) -> str:
    """Shell text that runs the shell text `text` on the node."""
    return shlex.join([*node.via, text]) if node.via else text


def write(nodes: tuple[RunNode, ...], path: str, source: str) -> str:
    """Shell text that writes what `source` redirects to a file of its user on each of the nodes.

    Several nodes are reached alike, but for the node's name at the end.
    """
    folder = shlex.quote(str(PurePosixPath(path).parent))
    text = f"umask 077 && mkdir -p {folder} && cat > {shlex.quote(path)}"
    if len(nodes) == 1:
        # Here, in a shell of its own: the steps that follow have the user's umask.
        return f"{shell_at(nodes[0], text) if nodes[0].via else f'({text})'} {source}"
    names = shlex.join(node.via[-1] for node in nodes)
    reach = shlex.join(nodes[0].via[:-1])
    return f'for node in {names}; do {reach} "$node" {shlex.quote(text)} {source}\ndone'


@dataclass(frozen=True, slots=True, kw_only=True)
class PutFile:
    """Write a file of the run, the same on several nodes."""

    at: tuple[RunNode, ...]
    path: str
    content: str

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return self.at

    def describe(self) -> str:
        """A shell command that writes exactly this file."""
        return write(self.at, self.path, heredoc(self.content))


@dataclass(frozen=True, slots=True, kw_only=True)
class PutHere:
    """Write a file of this machine that only its user may read."""

    path: str
    content: str

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return ()

    def describe(self) -> str:
        folder = shlex.quote(str(PurePosixPath(self.path).parent))
        text = f"(umask 077 && mkdir -p {folder} && cat > {shlex.quote(self.path)})"
        return f"{text} {heredoc(self.content)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFile:
    """Copy a file of this machine to nodes."""

    at: tuple[RunNode, ...]
    source: str
    path: str

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return self.at

    def describe(self) -> str:
        return write(self.at, self.path, f"< {shlex.quote(self.source)}")


# The folder brings the program that checks what is there, and copies it if need be.
UNPACK = """umask 077
part=$(mktemp -d) && trap 'rm -rf "$part"' EXIT && tar -xzf - -C "$part" &&
  python3 -I -S -B "$part/node.py" receive-folder "$part" "$1"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFolder:
    """Copy the folder train/ of this machine to a node unless the same content is there.

    The folder at `path` is complete, and only its user and root can have written it.
    """

    at: RunNode
    source: str
    path: str

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return (self.at,)

    def unpack(self) -> tuple[str, ...]:
        """The program there that reads it, as tar and gzip have packed it."""
        return ("sh", "-c", UNPACK, "sh", self.path)

    def describe(self) -> str:
        pack = shlex.join(("tar", "--exclude=__pycache__", "-C", self.source, "-cz", "."))
        return f"{pack} | {shell_at(self.at, shlex.join(self.unpack()))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRun:
    """Start the supervisor, which starts the launcher and watches the ranks."""

    at: RunNode
    command: Command
    run_dir: str

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return (self.at,)

    def describe(self) -> str:
        return shell_at(self.at, self.command.shell())


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyObjects:
    """Make the objects of a run in the cluster that takes them, in this order."""

    objects: tuple[dict[str, Any], ...]

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return ()

    def manifest(self) -> str:
        return as_yaml(self.objects)

    def describe(self) -> str:
        """The manifest: documents that an engine takes as they are."""
        return f"---\n{self.manifest().rstrip()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitScript:
    """Hand a script to the scheduler of the host `at`, which runs it when there is room.

    With `allocation`, the id of a job that runs already, the script is a step of that job.
    """

    at: RunNode
    run_dir: str
    script: str
    allocation: str = ""

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return (self.at,)

    def describe(self) -> str:
        """The script, as a person would hand it in; for another machine, how it gets there."""
        if not self.at.via:
            return self.script.rstrip("\n")
        path = shlex.quote(f"{self.run_dir}/{SCRIPT}")
        put = write((self.at,), f"{self.run_dir}/{SCRIPT}", heredoc(self.script))
        return f"{put}\n{shell_at(self.at, f'cd {shlex.quote(self.run_dir)} && sbatch {path}')}"


Step = PutHere | PutFile | SendFile | SendFolder | StartRun | ApplyObjects | SubmitScript


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a run is made from.

    Attributes:
        script: The path on this machine; empty for a module.
        settings: The settings of a recipe.
        script_args: The arguments of a script or module.
        fingerprints: The nodes by the fingerprint of their packages.
    """

    script: str
    stack: str
    fingerprints: Mapping[str, str]
    settings: Mapping[str, Value]
    script_args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that will be done for one run, and why. `run`: what will be known of it. `array`: the
    runs of a plan that starts several at once, itself the first; their steps are this one's."""

    run: RunRecord
    origin: Origin
    steps: tuple[Step, ...]
    array: tuple[Plan, ...] = ()

    @property
    def layout(self) -> Layout:
        return Layout(places=self.run.layout)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self.run.decisions

    @property
    def manifests(self) -> bool:
        """Whether all that is done is to make objects: the plan then is a manifest."""
        return all(isinstance(step, ApplyObjects) for step in self.steps)

    def describe(self) -> str:
        """The plan as a shell script: its decisions as comments, its steps as commands. One that
        is a script for a scheduler has them in it."""
        if any(isinstance(step, SubmitScript) and not step.at.via for step in self.steps):
            return "\n".join(step.describe() for step in self.steps) + "\n"
        comments = [f"# {one_line(line)}" for line in self.summary()]
        return "\n".join([*comments, *(step.describe() for step in self.steps)]) + "\n"

    def summary(self) -> list[str]:
        """The decisions with their reasons, one line each, and the place of every rank."""
        places = [place.describe() for place in self.layout.places]
        return [*(decision.describe() for decision in self.decisions), *places]
