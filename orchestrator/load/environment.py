"""Read the environment variables that a user gives to the ranks of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orch_node.agent.env_file import NAME, EnvFileError, read
from orch_node.protocol.environment import find_reserved

from orchestrator.errors import RequestError
from orchestrator.model.variables import SECRET


def environment(assignments: Sequence[str], file: Path | None, shell: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of --env and --env-file; --env wins.

    Args:
        assignments: NAME=VALUE, or NAME for the value in the shell.
        file: a file in the format of `docker run --env-file`, or None.
        shell: the environment of this process.

    Raises:
        RequestError: if a variable is malformed or not set, is set by orch, or holds a secret.
    """
    variables = variables_of(file, shell) if file else {}
    for assignment in assignments:
        name, has_value, value = assignment.partition("=")
        if not NAME.fullmatch(name) or "\0" in value:
            raise RequestError(f"--env {name!r}: not the name of a variable.", hint="--env NAME=VALUE, or --env NAME")
        if not has_value and name not in shell:
            raise RequestError(f"--env {name}: the variable is not set here.", hint=f"--env {name}=VALUE")
        variables[name] = value if has_value else shell[name]
    for name in variables:
        check_name(name)
    return variables


def variables_of(file: Path, shell: Mapping[str, str]) -> dict[str, str]:
    try:
        return read(file, shell)
    except EnvFileError as error:
        message = str(error).removeprefix("env_file ")
        raise RequestError(f"--env-file {message}.", hint="Each line is NAME=VALUE, NAME, or a # comment.") from None


def check_name(name: str) -> None:
    if SECRET.search(name):
        raise RequestError(
            f"{name}: the record of the run would show a secret.",
            hint="Set it in orch_secrets of the inventory, or in a Secret of the Kubernetes namespace; "
            "docs/how-to/secrets.md shows how.",
        )
    if reserved := find_reserved([name]):
        raise RequestError(f"{name}: {reserved[1]}.", hint="Leave it out of --env and --env-file.")
