"""The container of a run on this node: started, found by its labels, and removed.

RUN_DIR/container.json says what it is made of; a run without that file has none.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from orch_node import program, whole_files
from orch_node.agent import apptainer
from orch_node.agent.engines import ContainerError, answer
from orch_node.protocol import container, files
from orch_node.protocol.container import ContainerSpec
from orch_node.protocol.layout import Placement
from orch_node.protocol.outcome import ProcessRecord

ENGINE = container.DOCKER
MARK = b'{"contained": '  # how a line of the container's own wrapper begins
RUN, FOLDER, NODE = "orch.run", "orch.folder", "orch.node"  # labels
# Words that a shell has of its own: an image may have no other programs.
READ_EXPORTS = """words=
while IFS= read -r line; do words="$words$line
"; done
eval "$words"; unset words line; exec "$@" </dev/null"""
START_SECONDS = 60.0
SECONDS = 20.0
LOOK_SECONDS = 5.0
CURES = {
    "No such image": "Load it: `orch provision --docker-load FILE.tar`, or `docker pull` there.",
    "permission denied while trying to connect": "The user must be in the group docker there.",
    "Cannot connect to the Docker daemon": "Start the engine there: systemctl start docker.",
    "rlimit": "The engine may not raise the limit: --docker memlock=inherit.",
    "bind source path does not exist": "Every node must have what is mounted.",
}


def read_spec(run_dir: Path) -> ContainerSpec | None:
    """None for a run whose ranks are in no container. Raises ProtocolError."""
    try:
        return container.parse((run_dir / files.CONTAINER).read_text())
    except FileNotFoundError:
        return None


def start(run_dir: Path, spec: ContainerSpec, *, node: str, cpus: Sequence[int]) -> str:
    """Start this node's container, in the place of an earlier attempt's; -> its id. Apptainer has
    none until a rank runs: whether it can is looked at. Raises ContainerError."""
    if spec.engine != ENGINE:
        apptainer.check(spec)
        return ""
    remove(find(run_dir, node))
    options = run_options(run_dir, spec, node=node, cpus=cpus)
    # It does nothing until ranks are started in it.
    idle = ("--detach", "--entrypoint", "sleep", spec.image, "infinity")
    found = ask(*options, *idle, seconds=START_SECONDS).split()[-1]
    whole_files.write(id_file(run_dir, node), found)
    return found


def run_options(run_dir: Path, spec: ContainerSpec, *, node: str, cpus: Sequence[int]) -> list[str]:
    """`docker run` without the image: options of the plan, and those that only the node knows."""
    labels = {RUN: run_dir.name, FOLDER: str(run_dir), NODE: node}
    return [
        "run",
        *("--pull", "never"),
        *(word for name, value in labels.items() for word in ("--label", f"{name}={value}")),
        *("--user", f"{os.getuid()}:{os.getgid()}"),
        *("--cpuset-cpus", ",".join(map(str, cpus))),
        *spec.options,
    ]


def id_file(run_dir: Path, node: str) -> Path:
    return run_dir / f"container-{node}"


def exec_command(run_dir: Path, spec: ContainerSpec, *, node: str, rank: int) -> list[str]:
    """What starts the rank's process in the container of this node."""
    wrapper = (spec.python, "-u", str(program.PROGRAM), "contained-rank", str(run_dir))
    marks = ("--env", f"ORCH_RUN_DIR={run_dir}", "--env", f"RANK={rank}")
    if spec.engine != ENGINE:
        return [*apptainer.before(spec, marks), *wrapper]
    held = id_file(run_dir, node).read_text()
    return [ENGINE, "exec", "--interactive", *marks, held, *wrapper]


def entry_command(
    run_dir: Path,
    spec: ContainerSpec,
    placement: Placement,
    names: Sequence[str],
    words: Sequence[str],
    *,
    through_shell: Sequence[str] | None = None,
) -> list[str]:
    """What starts the image's own entrypoint with these words. The values of the variables `names`
    are taken from the engine's own environment, so that they are no arguments; the engine shows
    them to all its users. `through_shell`: the image's entrypoint, started by a shell that reads
    variables of which the engine knows nothing (`as_exports`)."""
    cpus = (*placement.cpus, *placement.worker_cpus)
    options = run_options(run_dir, spec, node=placement.node, cpus=cpus)
    head = [*(ENGINE, *options, "--rm"), *(word for name in names for word in ("--env", name))]
    if through_shell is None:
        return [*head, spec.image, *words]
    shell = ("--interactive", "--entrypoint", "/bin/sh")
    return [*head, *shell, spec.image, "-c", READ_EXPORTS, "sh", *through_shell, *words]


def as_exports(variables: Mapping[str, str]) -> bytes:
    """What READ_EXPORTS reads."""
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    return "".join(lines).encode()


def entrypoint_of(image: str) -> list[str]:
    """The image's own. Raises ContainerError."""
    found = ask("image", "inspect", "--format", "{{json .Config.Entrypoint}}", image)
    return list(json.loads(found) or [])


def find(run_dir: Path, node: str = "") -> list[str]:
    """Ids of the run's containers here, running or not: by its folder, because another user's run
    of another installation may have the same id. Raises ContainerError."""
    folders = {str(run_dir), os.path.realpath(run_dir)}
    labels = (f"{RUN}={run_dir.name}", *([f"{NODE}={node}"] if node else []))
    found = labelled(*labels)
    return [one for folder in folders for one in found.get(folder, [])]


def by_folder() -> dict[str, list[str]]:
    """As `labelled`, for all runs; nothing where there is no engine."""
    try:
        return labelled(RUN)
    except ContainerError:
        return {}


def labelled(*labels: str) -> dict[str, list[str]]:
    """Folder of a run -> ids of its containers that have these labels. Raises ContainerError."""
    form = f'{{{{.ID}}}} {{{{.Label "{FOLDER}"}}}}'
    filters = [word for label in labels for word in ("--filter", f"label={label}")]
    words = ("ps", "--all", "--no-trunc", *filters, "--format", form)
    found: dict[str, list[str]] = {}
    for line in ask(*words, seconds=LOOK_SECONDS).splitlines():
        one, _, folder = line.partition(" ")
        found.setdefault(folder, []).append(one)
    return found


def remove(containers: list[str]) -> None:
    """Kill and remove; one that is gone already is no error. Raises ContainerError."""
    if containers:
        ask("rm", "--force", "--volumes", *containers)


def clear(run_dir: Path, node: str = "") -> tuple[list[ProcessRecord], list[ProcessRecord]]:
    """Remove the run's containers here; -> (removed, left), as records of processes are."""
    spec = read_spec(run_dir)
    if run_dir.exists() if spec is None else spec.engine != ENGINE:
        return [], []
    try:
        found = find(run_dir, node)
    except ContainerError as error:
        return [], ([record(str(error))] if spec else [])
    try:
        remove(found)
    except ContainerError:
        return [], [record(one[:12]) for one in found]
    return [record(one[:12]) for one in found], []


def record(name: str) -> ProcessRecord:
    return ProcessRecord(pid=0, role="container", name=name, state="")


def ask(*words: str, seconds: float = SECONDS) -> str:
    """The engine's answer. Raises ContainerError."""
    try:
        return answer((ENGINE, *words), seconds=seconds)
    except ContainerError as error:
        raise ContainerError(explained(str(error))) from None


def explained(text: str) -> str:
    """The engine's last words, and what to do about it."""
    words = text.replace("\nRun 'docker run --help' for more information", "").splitlines()[-1]
    return ". ".join([words.rstrip("."), *(cure for sign, cure in CURES.items() if sign in text)])
