"""Starts one rank: `node.py rank --run RUN_DIR -- SCRIPT [ARGS...]`, once per rank.

This process stays small (standard library only). It finds its placement in RUN_DIR/layout.json,
makes the environment from RUN_DIR/env.json, starts the training process pinned to its cores with a
log file of its own, and outlives it: whatever happens to the training process, also SIGKILL, this
one reports it with an exit code or a signal. It keeps the launcher's PMI socket open until the
report is out, so that hydra does not kill the other ranks before the first failing one has been
named. Where the run has containers, the training process is in that of this node (container.py).
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from orch_node.agent.containers import read_spec
from orch_node.agent.env_file import EnvFileError
from orch_node.disk import trouble
from orch_node.events import send
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.container import ContainerSpec, RankOrder
from orch_node.protocol.events import Exited, Started
from orch_node.protocol.layout import Placement, RunLayout
from orch_node.protocol.outcome import EX_TEMPFAIL
from orch_node.protocol.values import ProtocolError
from orch_node.rank import container as rank_container
from orch_node.rank.environment import secret_names, training_environment
from orch_node.rank.inherited import close_listening
from orch_node.rank.log import last_words, open_log
from orch_node.rank.oom import Memory
from orch_node.rank.process import Child, Process, Stop, start
from orch_node.rank.refusal import fail

# (rank, world size) as the launchers name them: hydra, Open MPI, torchrun and its kin, srun, below
# which all others may be.
RANK_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def main(argv: list[str]) -> int:
    run_dir, command = parse(argv)
    close_listening()
    os.environ["ORCH_EVENTS_FD"] = str(os.dup(1))
    layout, spec = read_files(run_dir)
    placement = find_placement(layout, os.environ)
    os.environ["RANK"] = str(placement.rank)
    environment = training_environment(run_dir, layout, placement, spec)
    log_path = run_dir / files.rank_log(placement.rank)
    room = run_dir / files.made_room(placement.rank)
    room.unlink(missing_ok=True)
    try:
        log = open_log(log_path)
    except OSError as error:
        fail(trouble(placement.node, log_path, error))
    memory = Memory()
    child: Process
    if spec:
        order = RankOrder(placement, environment, tuple(command), str(log_path), layout.setvars, secrets=secret_names())
        try:
            child = rank_container.start(run_dir, spec, order)
        except EnvFileError as error:
            fail(f"{placement.node}: {error}.")
    else:
        child = Child(start(placement, environment, log, command))
    host = socket.gethostname()
    send(Started(node=placement.node, pid=child.pid, wrapper=os.getpid(), host=host))
    return wait(child, placement, memory, log_path, room)


def parse(argv: list[str]) -> tuple[Path, list[str]]:
    if len(argv) < 4 or argv[0] != "--run" or argv[2] != "--":
        fail("usage: node.py rank --run RUN_DIR -- SCRIPT [ARGS...]", code=2)
    return Path(argv[1]), argv[3:]


def read_files(run_dir: Path) -> tuple[RunLayout, ContainerSpec | None]:
    try:
        return layouts.parse((run_dir / files.LAYOUT).read_text()), read_spec(run_dir)
    except (OSError, ProtocolError) as error:
        fail(str(error))


def launched_as(environ: Mapping[str, str]) -> tuple[int, int]:
    """(rank, world size) given by the launcher."""
    for rank, size in RANK_VARIABLES:
        if rank in environ and size in environ:
            return int(environ[rank]), int(environ[size])
    fail(
        "a rank was not started by mpiexec or torchrun: there is no PMI_RANK, "
        "OMPI_COMM_WORLD_RANK or RANK in the environment."
    )


def find_placement(layout: RunLayout, environ: Mapping[str, str]) -> Placement:
    """This rank's own. torchrun numbers its nodes as they come; so there it is the one of this
    node and of its local number, whatever torchrun's rank."""
    rank, world_size = launched_as(environ)
    if world_size != layout.world_size:
        fail(f"the launcher started {world_size} ranks, the layout has {layout.world_size}.")
    if "ORCH_NODE" not in environ:
        return layout.placement(rank)
    node, local_rank = environ["ORCH_NODE"], int(environ["LOCAL_RANK"])
    placement = next((one for one in layout.on(node) if one.local_rank == local_rank), None)
    if placement is None:
        fail(f"the layout has no local rank {local_rank} on {node}.")
    return placement


def wait(child: Process, placement: Placement, memory: Memory, log: Path, room: Path) -> int:
    """Wait for the training process, passing signals on; -> this process' exit code. `room`: the
    mark that a rank leaves that has made room."""
    stop = Stop(child.pid)
    code, most_memory, cpu_seconds = child.wait()
    code = EX_TEMPFAIL if code == 0 and room.exists() else code
    name = signal.Signals(-code).name if code < 0 else None
    exited = Exited(
        node=placement.node,
        code=max(code, 0),
        signal=name,
        stopped=stop.asked,
        text=last_words(log) if code and not stop.asked else "",
        oom=memory.killed(child.pid) if name == "SIGKILL" and not stop.asked else None,
        max_rss_bytes=most_memory,
        cpu_seconds=cpu_seconds,
    )
    send(exited)
    if code == EX_TEMPFAIL:  # to a launcher it is well: the others are about to end alike
        return 0
    if code != 0:
        stop.linger()
    return code if code >= 0 else 128 - code
