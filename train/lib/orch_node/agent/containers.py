"""Start, find and remove the container of a run on this node.

RUN_DIR/container.json describes it; a run without that file has no container. A container of Apptainer or Singularity
exists as long as its rank, shares the node's processes, network and memory, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from orch_node import atomic_write, program
from orch_node.protocol import container, files, values
from orch_node.protocol.container import ContainerSpec, RankRequest
from orch_node.protocol.node_names import grouped
from orch_node.protocol.outcome import ProcessRecord
from orch_node.rank.checks import describe

ENGINE = container.DOCKER
MARK = b"contained rank: "  # the start of a status line from the process in the container
RUN, FOLDER, NODE = "orch.run", "orch.folder", "orch.node"  # labels
# Only built-ins of the shell: other programs may be missing in the image.
READ_EXPORTS = """words=
while IFS= read -r line; do words="$words$line
"; done
eval "$words"; unset words line; exec "$@" </dev/null"""
START_SECONDS = 60.0
COMMAND_SECONDS = 20.0
LIST_SECONDS = 5.0
USAGE = ("See 'docker ", "Run 'docker ", "Usage: ")  # of different versions of docker
LEVEL = re.compile(r"(?:\x1b\[\d*m)*(?:FATAL|ERROR|WARNING|INFO): *(?:\x1b\[0m)? *")  # before a message of Apptainer
# What to do about the messages that contain these texts.
HINTS: dict[str, str] = json.loads(Path(__file__).with_name("container_hints.json").read_text())
APPTAINER_PROGRAMS = ("apptainer", "singularity")
APPTAINER_SECONDS = 60.0  # the first read of an image on a shared file system takes long


class ContainerError(Exception):
    """An error of the engine, with a hint if one is known."""


def read_spec(run_dir: Path) -> ContainerSpec | None:
    """Return the description of the run's containers, or None for a run without them.

    Raises:
        ProtocolError: if it is damaged.
    """
    with contextlib.suppress(FileNotFoundError):
        return container.parse(atomic_write.read(run_dir / files.CONTAINER))
    return None


def start(run_dir: Path, spec: ContainerSpec, node: str, cpus: Sequence[int]) -> dict[str, str]:
    """Start this node's container, replace that of an earlier attempt, and return the versions of its packages.

    Apptainer has no container until a rank runs; check that it works.

    Raises:
        ContainerError: if the engine fails.
    """
    query = (spec.python, str(program.PROGRAM), "packages")
    if spec.engine != ENGINE:
        output = run_engine([*apptainer_prefix(spec), *query], seconds=APPTAINER_SECONDS)
    else:
        remove(find(run_dir, node))
        options = run_options(run_dir, spec, node=node, cpus=cpus)
        # The container sleeps; `docker exec` starts the ranks in it.
        idle = ("--detach", "--entrypoint", "sleep", spec.image, "infinity")
        container_id = run_docker(*options, *idle, seconds=START_SECONDS).split()[-1]
        atomic_write.write(run_dir / f"container-{node}", container_id)
        output = run_docker("exec", container_id, *query)
    try:
        return dict(json.loads(output.strip().rpartition("\n")[2]))
    except (ValueError, TypeError):
        raise ContainerError(f"{spec.python} of {spec.image} is not a Python that works: {output[-300:]!r}") from None


def run_options(run_dir: Path, spec: ContainerSpec, *, node: str, cpus: Sequence[int]) -> list[str]:
    """Return the arguments of `docker run` before the image."""
    labels = {RUN: run_dir.name, FOLDER: str(run_dir), NODE: node}
    return [
        "run",
        *("--pull", "never"),
        *(option for name, value in labels.items() for option in ("--label", f"{name}={value}")),
        *("--user", f"{os.getuid()}:{os.getgid()}"),
        *(option for group in os.getgroups() for option in ("--group-add", str(group))),
        *("--cpuset-cpus", ",".join(map(str, cpus))),
        *spec.options,
    ]


def exec_command(run_dir: Path, spec: ContainerSpec, *, node: str, rank: int) -> list[str]:
    """Return the command that starts a rank in the container of this node."""
    entry = (spec.python, "-u", str(program.PROGRAM), "contained-rank", str(run_dir))
    variables = ("--env", f"ORCH_RUN_DIR={run_dir}", "--env", f"RANK={rank}")
    if spec.engine != ENGINE:
        return [*apptainer_prefix(spec, variables), *entry]
    return [ENGINE, "exec", "--interactive", *variables, (run_dir / f"container-{node}").read_text(), *entry]


def entry_command(
    run_dir: Path, spec: ContainerSpec, order: RankRequest, names: Sequence[str], entrypoint: Sequence[str] | None
) -> list[str]:
    """Return the command that starts the image's own entrypoint.

    Args:
        run_dir: of the run.
        spec: of its containers.
        order: the rank on this node; its command is the arguments of the entrypoint.
        names: variables that `docker run` takes from its own environment, so that their values are
            not in its arguments. The engine shows them to all its users.
        entrypoint: that of the image, if a shell is to start it that reads further variables from
            standard input (`as_exports`), hidden from the engine.
    """
    placement = order.placement
    options = run_options(run_dir, spec, node=placement.node, cpus=(*placement.cpus, *placement.worker_cpus))
    command = [*(ENGINE, *options, "--rm"), *(option for name in names for option in ("--env", name))]
    if entrypoint is None:
        return [*command, spec.image, *order.command]
    shell = ("--interactive", "--entrypoint", "/bin/sh")
    return [*command, *shell, spec.image, "-c", READ_EXPORTS, "sh", *entrypoint, *order.command]


def as_exports(variables: Mapping[str, str]) -> bytes:
    """Return the input of READ_EXPORTS."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()).encode()


def entrypoint_of(image: str) -> list[str]:
    """Return the entrypoint that is set in the image.

    Raises:
        ContainerError: if the engine fails.
    """
    return list(json.loads(run_docker("image", "inspect", "--format", "{{json .Config.Entrypoint}}", image)) or [])


def find(run_dir: Path, node: str = "") -> list[ProcessRecord]:
    """Return the run's containers on this machine, running or not.

    They are found by the run's folder: another user's run of another installation may have the
    same id.

    Raises:
        ContainerError: if the engine fails.
    """
    by_folder = containers_by_folder(f"{RUN}={run_dir.name}", *([f"{NODE}={node}"] if node else []))
    return [record for folder in {str(run_dir), os.path.realpath(run_dir)} for record in by_folder.get(folder, [])]


def containers_by_folder(*labels: str) -> dict[str, list[ProcessRecord]]:
    """Return the containers with these labels, by the folder of their run.

    Raises:
        ContainerError: if the engine fails.
    """
    template = f'{{{{.ID}}}} {{{{.Label "{FOLDER}"}}}}'
    filters = [option for label in labels for option in ("--filter", f"label={label}")]
    output = run_docker("ps", "--all", *filters, "--format", template, seconds=LIST_SECONDS)
    lines = (line.partition(" ") for line in output.splitlines())
    return grouped((folder, to_record(container_id)) for container_id, _, folder in lines)


def remove(records: list[ProcessRecord]) -> None:
    """Kill and remove containers; missing ones are ignored.

    Raises:
        ContainerError: if the engine fails.
    """
    if records:
        run_docker("rm", "--force", "--volumes", *(record.name for record in records))


def remove_all(run_dir: Path, node: str = "") -> tuple[list[ProcessRecord], list[ProcessRecord]]:
    """Remove the run's containers here; return records of those removed, and of those that remain."""
    path = run_dir / files.CONTAINER
    spec = values.load(container.parse, path)
    if spec.engine != ENGINE if spec else run_dir.exists() and not path.exists():
        return [], []
    records: list[ProcessRecord] = []
    try:
        records = find(run_dir, node)
        remove(records)
    except ContainerError as error:
        return [], records or ([to_record(str(error))] if spec else [])
    return records, []


def to_record(name: str) -> ProcessRecord:
    """Return a container as reported to the controller."""
    return ProcessRecord(pid=0, role="container", name=name, state="")


def run_docker(*arguments: str, seconds: float = COMMAND_SECONDS) -> str:
    """Run docker as run_engine() does, and return its output."""
    return run_engine((ENGINE, *arguments), seconds=seconds)


def run_engine(argv: Sequence[str], *, seconds: float) -> str:
    """Run a program of the engine, and return its output.

    Raises:
        ContainerError: if it cannot be started, fails, or takes longer than `seconds`.
    """
    try:
        process = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except OSError as error:
        raise ContainerError(f"{argv[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ContainerError(f"{argv[0]} {argv[1]} did not respond within {seconds:.0f} s") from None
    if process.returncode != 0:
        # Docker 20.10 writes to standard output why `docker exec` has failed.
        output = process.stderr.strip() or process.stdout.strip() or f"exit code {process.returncode}"
        raise ContainerError(explain_error(output))
    return process.stdout


def explain_error(output: str) -> str:
    """Return the line of an engine's output that names a known error, or else the last one, with a hint."""
    lines = [line for line in output.splitlines() if line and not line.startswith(USAGE)]
    line = next((line for line in lines if any(sign in line for sign in HINTS)), lines[-1] if lines else output)
    message = LEVEL.sub("", line).rstrip(". ")
    return ". ".join([message, *(hint for sign, hint in HINTS.items() if sign in message)][:2])


def apptainer_prefix(spec: ContainerSpec, options: Sequence[str] = ()) -> list[str]:
    """Return the arguments before those of a program in the image.

    Raises:
        ContainerError: if Apptainer is not installed.
    """
    engine = next((name for name in APPTAINER_PROGRAMS if shutil.which(name)), None)
    if engine is None:
        raise ContainerError(describe("no-apptainer", names=" nor ".join(APPTAINER_PROGRAMS)))
    return [engine, "exec", *spec.options, *options, spec.image]
