"""A plan: all steps of a run as values, which `--dry-run` prints and execute.py carries out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import yaml
from orch_node.protocol.batch import SCRIPT
from orch_node.protocol.node_names import fold, grouped
from orch_node.protocol.record import RankPlacement, RunNode, RunRecord, number_ranges

from orchestrator.model.cluster import Layout
from orchestrator.model.decision import Decision
from orchestrator.model.printable import Command, counted, described_size, mask, one_line
from orchestrator.model.project import Imports, Project
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.resolve import Resolved

Object = dict[str, Any]


class Dumper(yaml.SafeDumper):
    """A dumper that writes texts with several lines in block style, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text and text.isascii() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, represent_text)
# Quote texts such as 1e-4, which kubectl reads as numbers and booleans, but PyYAML does not.
NUMBER_LIKE = re.compile("[-+._]*[0-9][-+.0-9_a-fA-FxXoO]*$")
Dumper.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER_LIKE, list("-+.0123456789"))
Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("[yYnN]$"), list("yYnN"))


def as_yaml(objects: tuple[Object, ...]) -> str:
    """Return the objects as YAML documents, in this order."""
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)


def comments(lines: Iterable[str], mark: str = "# ") -> list[str]:
    """Return lines as comments of a shell script, in which no line can end its comment."""
    return [f"{mark}{one_line(line)}" for line in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a plan: a value that `orch train --dry-run` prints and that execute.py carries out.

    Attributes:
        nodes: the nodes on which it is done; empty for this machine.
    """

    nodes: tuple[RunNode, ...] = ()

    @property
    def node(self) -> RunNode:
        """Return the first node."""
        return self.nodes[0]

    def title(self) -> str:
        """Return what is done; its length does not depend on the number of nodes."""
        raise NotImplementedError

    def contents(self) -> Sequence[str]:
        """Return the lines of the file that is written, or the names of the files that are copied."""
        return ()

    def commands(self) -> tuple[Command, ...]:
        """Return the commands that are run on the nodes."""
        return ()

    def outline(self) -> list[str]:
        """Return the title."""
        return [self.title()]

    def describe(self) -> list[str]:
        """Return the step in full, as lines of a shell script: its commands, and all else as comments."""
        shell_lines = [command.shell() for command in self.commands()]
        return [*comments([self.title()]), *comments(self.contents(), "#   "), *shell_lines]

    def at_nodes(self, action: str) -> str:
        return f"{action} on {fold(node.node for node in self.nodes)}" if self.nodes else action


@dataclass(frozen=True, slots=True, kw_only=True)
class PutFile(Step):
    """A step that writes a file, the same on several nodes; a file of this machine is private."""

    path: str
    content: str

    def title(self) -> str:
        return f"{self.at_nodes(f'write {self.path}')}: {described_size(len(self.content.encode()))}"

    def contents(self) -> Sequence[str]:
        return self.content.splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Step):
    """A step that copies a file or a folder of this machine to nodes."""

    source: str
    path: str

    def title(self) -> str:
        return self.at_nodes(f"copy {self.source} to {self.path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFile(Copy):
    """A step that copies a file."""


# The archive contains the program that checks the existing folder, and copies the archive's files if needed.
UNPACK = """umask 077
part=$(mktemp -d) && trap 'rm -rf "$part"' EXIT && tar -xzf - -C "$part" &&
  python3 -I -S -B "$part/node.py" store unpack "$1" "$part"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFolder(Copy):
    """A step that copies the folder train/ to a node unless the same content is there.

    The folder at `path` is complete, and only its user and root can have written it.
    """

    def unpack(self) -> tuple[str, ...]:
        """Return the command on the node that reads the gzipped tar archive."""
        return ("sh", "-c", UNPACK, "sh", self.path)

    def commands(self) -> tuple[Command, ...]:
        return (Command(argv=self.unpack()),)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFolder(Step):
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

    def title(self) -> str:
        number = f", {counted(len(self.files), 'file')}," if self.files else ""
        copy = f" and copy it to {self.copy}" if self.copy else ""
        return self.at_nodes(f"store {self.source}{number} in {self.path}{copy}")

    def contents(self) -> Sequence[str]:
        return self.files

    def commands(self) -> tuple[Command, ...]:
        return tuple(Command(argv=self.command(name)) for name in ("use", "receive"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckImports(Step):
    """A step that checks whether a node has the modules that a script imports.

    Attributes:
        command: prints those that it does not have.
    """

    command: tuple[str, ...]
    imports: Imports

    def title(self) -> str:
        return self.at_nodes(f"check the imports of {counted(len(self.imports.importers), 'file')}")

    def commands(self) -> tuple[Command, ...]:
        return (Command(argv=self.command),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgram(Step):
    """A step that runs a program on nodes before the start.

    Attributes:
        command: the program on each node.
        seconds: its time limit; by default enough for a Python to start from a slow disk.
        hint: what to do if it fails; '' for the usual hints.
    """

    command: tuple[str, ...]
    seconds: float = 60.0
    hint: str = ""

    def title(self) -> str:
        return self.at_nodes("run")

    def commands(self) -> tuple[Command, ...]:
        return (Command(argv=self.command),)

    def outline(self) -> list[str]:
        return [f"{self.title()}: {shlex.join(self.command)}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRun(Step):
    """A step that starts the supervisor, which starts the launcher and watches the ranks."""

    command: Command
    run_dir: str

    def title(self) -> str:
        return self.at_nodes("start")

    def commands(self) -> tuple[Command, ...]:
        return (self.command,)

    def outline(self) -> list[str]:
        return [f"{self.at_nodes('start')}: {self.command.shell()}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyObjects(Step):
    """A step that creates the Kubernetes objects of a run in this order."""

    objects: tuple[Object, ...]

    def outline(self) -> list[str]:
        return [
            f"create {item['kind']} {item['metadata']['name']}: {described_size(len(as_yaml((item,)).encode()))}"
            for item in self.objects
        ]

    def describe(self) -> list[str]:
        """Return the manifest as YAML documents."""
        return ["---", as_yaml(self.objects).rstrip()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitScript(Step):
    """A step that submits a script to the batch system of a login node, or of this machine.

    Attributes:
        run_dir: the folder in which the script is written and submitted.
        script: the text of the script.
        name: the name of the job.
        options: the options in the script.
        program: the command that submits the script; the script's path follows.
        allocation: the running job of which the script becomes a step; '' for a new job.
    """

    run_dir: str
    script: str
    name: str
    options: tuple[str, ...]
    program: str
    allocation: str = ""

    def title(self) -> str:
        size = described_size(len(self.script.encode()))
        return f"{self.at_nodes(f'submit {self.run_dir}/{SCRIPT}')}: {self.program}, {size}"

    def outline(self) -> list[str]:
        """Return the title, and the options of the script."""
        return [self.title(), *(f"    {line}" for line in takewhile("#".__ne__, self.script.splitlines()[1:]))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of one run, and the reasons of its decisions.

    Attributes:
        run: the record of the run.
        request: the request, which the run's folder records.
        resolved: the request in which everything is decided.
        fingerprints: the nodes by the fingerprint of their packages.
        project: the files that are sent with the script, as they were or will be sent.
        hidden: the secrets in variables, settings and arguments, also in variables that the request only names.
        array: all runs of a plan that starts several, including this one; they share its steps.
        max_active: how many of these may be active at once; None for no limit.
        target: the target that has planned the run, and that starts it.
    """

    run: RunRecord
    request: TrainRequest
    resolved: Resolved
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    project: Project | None = None
    hidden: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    array: tuple[Plan, ...] = ()
    max_active: int | None = None
    target: Any = field(default=None, compare=False, repr=False)

    @property
    def layout(self) -> Layout:
        return Layout(rank_places=self.run.layout)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self.run.decisions

    def describe(self) -> str:
        """Return the plan in full, without secrets.

        These are the scripts of jobs, or a manifest, as submitted; otherwise a shell script with the commands that
        orch runs on the nodes, in which decisions and files are comments.
        """
        scripts = [step.script.rstrip("\n") for step in self.steps if isinstance(step, SubmitScript)]
        if scripts:
            return mask("\n\n".join(scripts) + "\n", self.secrets)
        lines = [*comments(self.summary()), *(line for step in self.steps for line in step.describe())]
        return mask("\n".join(lines) + "\n", self.secrets)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the secrets in the requests of all runs, which only the ranks get."""
        return tuple(dict.fromkeys(secret for plan in (self, *self.array) for secret in plan.hidden))

    def summary(self) -> list[str]:
        """Return the decisions with their reasons, one line each, and the place of every rank."""
        return [*(decision.describe() for decision in self.run.decisions), *describe_places(self.run.layout)]


def describe_places(rank_places: tuple[RankPlacement, ...]) -> list[str]:
    """Return a line for each rank, or one for the ranks of all nodes whose ranks have the same cores."""
    by_node = Layout(rank_places=rank_places).by_node()
    nodes_by_bindings = grouped(
        (tuple(rank_place.binding() for rank_place in local_places), node) for node, local_places in by_node.items()
    )
    lines = []
    for bindings, nodes in nodes_by_bindings.items():
        if len(nodes) == 1:
            bound_ranks = zip(by_node[nodes[0]], bindings, strict=True)
            lines += [f"rank {rank_place.rank}: {rank_place.node}, {binding}" for rank_place, binding in bound_ranks]
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
