"""The host with Slurm's programs: this one, or a login node behind SSH."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orch_node.protocol import values
from orch_node.protocol.slurm import LocalStack
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.load.clusters import local_facts
from orchestrator.load.facts import NodeFacts, validate
from orchestrator.load.records import parse_facts
from orchestrator.model.cluster import Facts
from orchestrator.model.command import LOGIN_SCRIPT_HINT
from orchestrator.paths import STANDALONE
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.slurm.scheduler import Scheduler
from orchestrator.targets.slurm.settings import SlurmSettings

# Many sites put Slurm's programs on PATH where a login shell begins.
SHELL = ("bash", "-lc", 'exec "$@"', "bash")
FACTS_SECONDS = 120.0  # a shared file system that is read for the first time
MISSING = (126, 127)  # exit codes of a shell for a program that is not there
HINT = (
    "--slurm root=FOLDER is one that `orch provision --on slurm` has filled, or --slurm "
    "python=INTERPRETER one with the stack's packages, on a shared file system."
)


def host_at(login: str) -> Local | Ssh:
    """`login`: as ~/.ssh/config knows it; empty for this machine."""
    return Ssh(login, None) if login else Local()


def scheduler_at(host: Local | Ssh, cluster: str = "") -> Scheduler:
    return Scheduler(host, SHELL if isinstance(host, Ssh) else (), cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """archives/STACK.json: an archive beside it. `tree`: what it was packed from."""

    file: str
    sha256: str
    tree: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Of the host with Slurm's programs, and of the stack there. `home`: the user's folder."""

    facts: Facts
    home: str


def look(login: str, python: str) -> Seen:
    """Raises RequestError for an interpreter that is not there, ExecuteError for no answer."""
    if not login:
        if not Path(python).exists():
            raise RequestError(f"{python} is not there.", hint=HINT)
        return Seen(facts=local_facts(python), home=str(Path.home()))
    host = Ssh(login, None)
    try:
        return ask(host, python)
    finally:
        host.close()


def local_stack(slurm: SlurmSettings, stack: str) -> LocalStack | None:
    """What of it the nodes' own folders are filled with. Raises RequestError, ExecuteError."""
    if slurm.local is None:
        return None
    folder = f"{slurm.root}/archives"
    host = host_at(slurm.login or "")
    try:
        answer = host.capture(("cat", f"{folder}/{stack}.json"), seconds=FACTS_SECONDS)
    finally:
        host.close()
    if answer.code != 0:
        raise RequestError(
            f"--slurm local={slurm.local}: there is no archive of stack '{stack}' in {folder}.",
            hint="The same settings with `orch provision --on slurm` pack it, once.",
        )
    try:
        found = values.parse(Packed, answer.out, f"{folder}/{stack}.json")
    except ProtocolError as error:
        raise ExecuteError(str(error), hint="Provision the folder again.") from None
    if not re.fullmatch(r"[0-9a-f]{64}", found.sha256) or "/" in found.file:
        raise ExecuteError(f"{folder}/{stack}.json is damaged.", hint="Provision the folder again.")
    return LocalStack(
        folder=f"{slurm.local}/stacks/{stack}-{found.sha256[:16]}",
        archive=f"{folder}/{found.file}",
        sha256=found.sha256,
    )


def ask(host: Ssh, python: str) -> Seen:
    home = host.capture(("sh", "-c", 'printf %s "$HOME"'), seconds=FACTS_SECONDS)
    program = (STANDALONE / "facts.py").read_text(encoding="utf-8")
    words = (python, "-I", "-c", program, str(Path(python).parent.parent))
    answer = host.capture(words, seconds=FACTS_SECONDS)
    if not home.out.startswith("/"):
        raise ExecuteError(
            f"{host.node}: the output of a command there begins with {home.out.strip()[:60]!r}, "
            "which the command does not print.",
            hint=LOGIN_SCRIPT_HINT,
        )
    if answer.code in MISSING:
        raise RequestError(f"{python} is not there on {host.node}.", hint=HINT)
    if answer.code != 0:
        raise ExecuteError(f"{host.node}: {python} does not run: {answer.err.strip()[-300:]}", hint=HINT)
    where = f"the facts of {host.node}"
    try:
        found = validate(NodeFacts, values.check_object(values.loads(answer.out, where), where), where)
    except ProtocolError as error:
        raise ExecuteError(f"{host.node}: {error}", hint=LOGIN_SCRIPT_HINT) from None
    return Seen(facts=parse_facts(found), home=home.out)
