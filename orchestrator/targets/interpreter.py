"""Query a Python interpreter for the facts of its host and of its packages."""

from __future__ import annotations

from orch_node.protocol import values
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.load.facts import InvalidResponse, NodeFacts, validate
from orchestrator.load.records import parse_facts
from orchestrator.model.cluster import Facts
from orchestrator.model.command import LOGIN_SCRIPT_HINT
from orchestrator.paths import STANDALONE
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local

FACTS_SECONDS = 120.0  # The first read from a shared file system can be slow.
# Exit codes of a shell for a program that it cannot run.
PROBLEMS = {126: "cannot be executed", 127: "does not exist"}


def query_interpreter(host: Local | Ssh, name: str, python: str, hint: str) -> Facts:
    """Return the facts of a host, with the packages that an interpreter there imports.

    Args:
        host: the connection.
        name: the name of the host.
        python: the interpreter.
        hint: what to do if it does not exist or does not run.

    Raises:
        RequestError: if the interpreter does not exist.
        ExecuteError: if it fails, or its output is not what it prints.
    """
    program = (STANDALONE / "facts.py").read_text(encoding="utf-8")
    result = host.capture((python, "-I", "-c", program), seconds=FACTS_SECONDS)
    if result.code in PROBLEMS:
        raise RequestError(f"{python} {PROBLEMS[result.code]} on {name}.", hint=hint)
    if result.code != 0:
        raise ExecuteError(f"{name}: {python} does not run: {result.err.strip()[-300:]}", hint=hint)
    source = f"the facts of {name}"
    try:
        return parse_facts(validate(NodeFacts, values.check_object(values.loads(result.out, source), source), source))
    except (ProtocolError, InvalidResponse) as error:
        raise ExecuteError(f"{name}: {error}", hint=LOGIN_SCRIPT_HINT) from None
