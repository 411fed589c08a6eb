"""A plan: all steps of a run as values. `--dry-run` prints the steps that execute.py carries out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import PurePosixPath
from typing import Any

from orch_node.protocol.node_names import fold
from orch_node.protocol.record import Place, RunNode, RunRecord, number_ranges

from orchestrator.model.command import Command
from orchestrator.model.decision import Decision
from orchestrator.model.imports import Imports
from orchestrator.model.layout import Layout
from orchestrator.model.packages import Packages
from orchestrator.model.printable import one_line
from orchestrator.model.project import Project
from orchestrator.model.recipe import Value
from orchestrator.model.secret_values import mask
from orchestrator.planning.request import TrainRequest

HEREDOC_DELIMITER = "ORCH_END_OF_FILE"
SCRIPT = "job.sh"  # for a scheduler, in the run's folder


def heredoc(content: str) -> str:
    """Return a file's content as a here-document whose delimiter is not a line of it."""
    lines = set(content.split("\n"))
    delimiters = (f"{HEREDOC_DELIMITER}_{number}" if number else HEREDOC_DELIMITER for number in count())
    delimiter = next(word for word in delimiters if word not in lines)
    return f"<<'{delimiter}'\n{content}{delimiter}"


def shell_at(node: RunNode, text: str) -> str:
    """Return shell text that runs `text` on the node."""
    return shlex.join([*node.via, text]) if node.via else text


def at_nodes(nodes: tuple[RunNode, ...], text: str) -> str:
    """Return shell text that runs `text` on the node, or in the loop of for_nodes() on each of several.

    The ssh commands of several nodes differ only in the node's name at the end.
    """
    if len(nodes) == 1:
        return shell_at(nodes[0], text)
    return f'{shlex.join(nodes[0].via[:-1])} "$node" {shlex.quote(text)}'


def for_nodes(nodes: tuple[RunNode, ...], text: str) -> str:
    """Return the text, or a loop over several nodes."""
    return text if len(nodes) == 1 else f"for node in {shlex.join(node.via[-1] for node in nodes)}; do {text}\ndone"


def write_command(nodes: tuple[RunNode, ...], path: str, source: str) -> str:
    """Return shell text that writes the redirected `source` to a private file on each of the nodes."""
    folder = shlex.quote(str(PurePosixPath(path).parent))
    text = f"umask 077 && mkdir -p {folder} && cat > {shlex.quote(path)}"
    # A subshell keeps the user's umask for the following steps.
    return for_nodes(nodes, f"{at_nodes(nodes, text) if nodes[0].via else f'({text})'} {source}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PutFile:
    """A step that writes a file of the run, the same on several nodes."""

    nodes: tuple[RunNode, ...]
    path: str
    content: str

    def describe(self) -> str:
        """Return a shell command that writes exactly this file."""
        return write_command(self.nodes, self.path, heredoc(self.content))


@dataclass(frozen=True, slots=True, kw_only=True)
class PutLocalFile:
    """A step that writes a private file on this machine."""

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
    """A step that copies a file of this machine to nodes."""

    nodes: tuple[RunNode, ...]
    source: str
    path: str

    def describe(self) -> str:
        return write_command(self.nodes, self.path, f"< {shlex.quote(self.source)}")


# The archive contains the program that checks the existing folder, and copies the archive's files if needed.
UNPACK = """umask 077
part=$(mktemp -d) && trap 'rm -rf "$part"' EXIT && tar -xzf - -C "$part" &&
  python3 -I -S -B "$part/node.py" receive-folder "$part" "$1"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFolder:
    """A step that copies the folder train/ to a node unless the same content is there.

    The folder at `path` is complete, and only its user and root can have written it.
    """

    node: RunNode
    source: str
    path: str

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return (self.node,)

    def unpack(self) -> tuple[str, ...]:
        """Return the command on the node that reads the gzipped tar archive."""
        return ("sh", "-c", UNPACK, "sh", self.path)

    def describe(self) -> str:
        pack = shlex.join(("tar", "--exclude=__pycache__", "-C", self.source, "-cz", "."))
        return f"{pack} | {shell_at(self.node, shlex.join(self.unpack()))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFolder:
    """A step that puts a folder of this machine into the store of nodes, unless they have it already.

    It is sent to one node, unless a node has it already, and passed on from there to the others over SSH.

    Attributes:
        source: the folder.
        files: the files and links to send, below the folder; all of them if empty.
        path: the folder's place in the store; its name is the hash of the content (`folder_hash`).
        node_program: the interpreter on the nodes, and node.py there.
        run_dir: the folder of the run that uses it.
        copy: where the run gets a writable copy of it; empty for none. A copy that was made from another folder gets
            the files that have changed.
        keeps_copies: whether a node with a copy does not need the folder, because this machine cannot send it any more.
    """

    nodes: tuple[RunNode, ...]
    source: str
    files: tuple[str, ...]
    path: str
    node_program: tuple[str, str]
    run_dir: str
    copy: str = ""
    keeps_copies: bool = False

    def command(self, name: str) -> tuple[str, ...]:
        """Return the command `use`, `receive` or `send` on a node; `receive` reads the gzipped tar archive."""
        copy = ["--copy", self.copy] if self.copy else []
        copy += ["--keep"] if self.keeps_copies else []
        return (*self.node_program, "store", name, self.path, self.run_dir, *copy)

    def describe(self) -> str:
        """Return a shell command that sends the archive to each node that does not have the folder."""
        use, receive = (at_nodes(self.nodes, shlex.join(self.command(name))) for name in ("use", "receive"))
        pack = shlex.join(("tar", "-C", self.source, "-cz"))
        names = "".join(f"{name}\n" for name in self.files)
        options, newline, lines = f"--verbatim-files-from --no-unquote -T - {heredoc(names)}".partition("\n")
        if not self.files:
            options, newline, lines = ".", "", ""
        return for_nodes(self.nodes, f"{use} < /dev/null || {pack} {options} | {receive}{newline}{lines}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckImports:
    """A step that checks whether a node has the modules that a script imports.

    Attributes:
        command: prints those that it does not have.
    """

    node: RunNode
    command: tuple[str, ...]
    imports: Imports

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return (self.node,)

    def describe(self) -> str:
        return shell_at(self.node, shlex.join(self.command))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFiles:
    """A step that copies files and links below a folder of this machine to a folder that all nodes share.

    Attributes:
        source: the folder.
        files: their paths below it.
        path: the folder of the copy.
        digest: the hash of all files of a new copy (`folder_hash`); '' if the copy exists.
        removed: the SHA-256 of files that are removed from the copy unless the run has changed them, by path.
    """

    source: str
    files: tuple[str, ...]
    path: str
    digest: str = ""
    removed: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return ()

    def describe(self) -> str:
        names = heredoc("".join(f"{name}\n" for name in self.files))
        target = shlex.quote(self.path)
        pack = f"tar -C {shlex.quote(self.source)} -c --mode=u+w --verbatim-files-from --no-unquote -T - {names}"
        text = f"(umask 077 && mkdir -p {target}) && {pack}".replace("\n", f" | tar -C {target} -x\n", 1)
        return "\n".join([text, *(f"rm -f {shlex.quote(f'{self.path}/{name}')}" for name in self.removed)])


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAttempt:
    """A step that prepares the folder of a run for its next attempt.

    Attributes:
        command: the program on each node.
        seconds: its time limit; by default enough for a Python to start from a slow disk.
        hint: what to do if it fails; '' for the usual hints.
    """

    nodes: tuple[RunNode, ...]
    command: tuple[str, ...]
    seconds: float = 60.0
    hint: str = ""

    def describe(self) -> str:
        return "\n".join(shell_at(node, shlex.join(self.command)) for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRun:
    """A step that starts the supervisor, which starts the launcher and watches the ranks."""

    node: RunNode
    command: Command
    run_dir: str

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return (self.node,)

    def describe(self) -> str:
        return shell_at(self.node, self.command.shell())


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyObjects:
    """A step that creates the Kubernetes objects of a run in this order."""

    objects: tuple[dict[str, Any], ...]

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return ()

    def manifest(self) -> str:
        from orchestrator.planning.manifest import as_yaml

        return as_yaml(self.objects)

    def describe(self) -> str:
        """Return the manifest as YAML documents."""
        return f"---\n{self.manifest().rstrip()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitScript:
    """A step that submits a script to the batch system of a host.

    Attributes:
        node: the host.
        run_dir: the folder in which the script is written and submitted.
        script: the text of the script.
        name: the name of the job.
        options: the options in the script.
        program: the command that submits the script; the script's path follows.
        allocation: the running job of which the script becomes a step; '' for a new job.
    """

    node: RunNode
    run_dir: str
    script: str
    name: str
    options: tuple[str, ...]
    program: str
    allocation: str = ""

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        return (self.node,)

    def describe(self) -> str:
        """Return the commands that write the script on the host and submit it there."""
        path = shlex.quote(f"{self.run_dir}/{SCRIPT}")
        transfer = write_command((self.node,), f"{self.run_dir}/{SCRIPT}", heredoc(self.script))
        submit = f"cd {shlex.quote(self.run_dir)} && {self.program} {path}"
        return f"{transfer}\n{shell_at(self.node, submit) if self.node.via else f'({submit})'}"


Step = (
    PutLocalFile
    | PutFile
    | SendFile
    | SendFolder
    | StoreFolder
    | CopyFiles
    | CheckImports
    | PrepareAttempt
    | StartRun
    | ApplyObjects
    | SubmitScript
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The inputs that a run is made from.

    Attributes:
        request: the request as it is recorded.
        script: the path on this machine; empty for a module.
        settings: the settings of a recipe.
        script_args: the arguments of a script or module.
        project: the files that are sent with a script, or None.
        packages: the packages that are added to the stack, or None.
        fingerprints: the nodes by the fingerprint of their packages.
        secrets: the secrets in variables, settings and arguments, also in variables that the request only names.
    """

    request: TrainRequest
    script: str
    stack: str
    fingerprints: Mapping[str, str]
    settings: Mapping[str, Value]
    script_args: tuple[str, ...]
    project: Project | None = None
    packages: Packages | None = None
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of one run, and the reasons of its decisions.

    Attributes:
        run: the record of the run.
        array: all runs of a plan that starts several, including this one; they share its steps.
        max_active: how many of these may be active at once; None for no limit.
    """

    run: RunRecord
    origin: Origin
    steps: tuple[Step, ...]
    array: tuple[Plan, ...] = ()
    max_active: int | None = None

    @property
    def layout(self) -> Layout:
        return Layout(rank_places=self.run.layout)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self.run.decisions

    @property
    def manifests(self) -> bool:
        """Return whether the plan only creates objects, so that it can be printed as a manifest."""
        return all(isinstance(step, ApplyObjects) for step in self.steps)

    def describe(self) -> str:
        """Return the plan as a shell script without secrets: its decisions as comments, its steps as commands.

        If the only step submits a job script on this machine, return that script, which contains the decisions.
        """
        match self.steps:
            case (SubmitScript() as step,) if not step.node.via:
                return mask(step.script.rstrip("\n") + "\n", self.secrets)
        comments = [f"# {one_line(line)}" for line in self.summary()]
        return mask("\n".join([*comments, *(step.describe() for step in self.steps)]) + "\n", self.secrets)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the secrets in the requests of all runs, which only the ranks get."""
        return tuple(dict.fromkeys(secret for plan in (self, *self.array) for secret in plan.origin.secrets))

    def summary(self) -> list[str]:
        """Return the decisions with their reasons, one line each, and the place of every rank."""
        return [*(decision.describe() for decision in self.decisions), *describe_places(self.layout.rank_places)]


def describe_places(rank_places: Sequence[Place]) -> list[str]:
    """Return a line for each rank, or one for the ranks of all nodes whose ranks have the same cores."""
    by_node: dict[str, list[Place]] = {}
    for rank_place in rank_places:
        by_node.setdefault(rank_place.node, []).append(rank_place)
    nodes_by_bindings: dict[tuple[str, ...], list[str]] = {}
    for node, local_places in by_node.items():
        bindings = tuple(rank_place.binding() for rank_place in local_places)
        nodes_by_bindings.setdefault(bindings, []).append(node)
    lines = []
    for bindings, nodes in nodes_by_bindings.items():
        if len(nodes) == 1:
            lines += [rank_place.describe() for rank_place in by_node[nodes[0]]]
            continue
        ranks = number_ranges(rank_place.rank for node in nodes for rank_place in by_node[node])
        lines.append(f"ranks {ranks}: {len(bindings)} on each of {fold(nodes)}: {merge_bindings(bindings)}")
    return lines


def merge_bindings(bindings: Sequence[str]) -> str:
    """Return the bindings of a node's ranks as one text: `cores 0-1 / 2-3, 2 threads`."""
    cores, threads = zip(*(binding.rpartition("cores ")[2].partition(", ")[::2] for binding in bindings), strict=True)
    if len(set(bindings)) == 1:
        return bindings[0]
    return f"cores {' / '.join(cores)}, {threads[0]}" if len(set(threads)) == 1 else "; ".join(bindings)
