"""Start one rank: `node.py rank --run RUN_DIR -- SCRIPT [ARGS...]`, once per rank.

This process stays small (standard library only). It finds its placement in RUN_DIR/layout.json,
makes the environment from RUN_DIR/env.json, starts the training process pinned to its cores, with
its output in the rank's log, and outlives it: it reports the exit code or signal of the training
process, SIGKILL included. It keeps the launcher's PMI socket open until the report is out, so that
hydra does not kill the other ranks before the first failing one is named. If the run has
containers, the training process is in the node's container (container.py).
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from orch_node.agent.containers import read_spec
from orch_node.disk import describe_on_node
from orch_node.events import send
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.container import EnvFileError, RankRequest
from orch_node.protocol.events import Exited, Started
from orch_node.protocol.layout import RankEntry, RunLayout
from orch_node.protocol.outcome import EX_TEMPFAIL
from orch_node.protocol.values import ProtocolError
from orch_node.rank import container as rank_container
from orch_node.rank.checks import RankError, describe, fail
from orch_node.rank.environment import secret_names, training_environment
from orch_node.rank.output import log_tail, oom_evidence, oom_kill_count
from orch_node.rank.process import Child, SignalForwarder, close_listening, end_descendants, open_log, start

# (rank, world size) of hydra, Open MPI, torchrun and accelerate, and srun. srun comes last: it may
# have started any of the others.
RANK_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def main(argv: list[str]) -> int:
    """Start the rank, wait for it, and return the exit code for the launcher."""
    run_dir, command = Path(argv[1]), argv[3:]
    close_listening()
    if restarts := os.environ.get("ORCH_TORCHRUN_RESTARTS"):  # torchrun's own number differs between nodes
        os.environ["TORCHELASTIC_RESTART_COUNT"] = restarts
    os.environ["ORCH_EVENTS_FD"] = str(os.dup(1))
    oom_kills = oom_kill_count()
    try:
        layout = layouts.parse((run_dir / files.LAYOUT).read_text())
        placement = find_placement(layout, os.environ)
        os.environ["RANK"] = str(placement.rank)
        child = start_rank(run_dir, layout, placement, command)
    except (EnvFileError, OSError, ProtocolError, RankError, ValueError) as error:
        fail(str(error))
    send(Started(node=placement.node, pid=child.pid, wrapper=os.getpid(), host=socket.gethostname()))
    return wait(child, placement, oom_kills, run_dir)


def start_rank(run_dir: Path, layout: RunLayout, placement: RankEntry, command: Sequence[str]) -> Child:
    """Start the training process, in a container if the run has containers."""
    spec = read_spec(run_dir)
    environment = training_environment(run_dir, layout, placement, spec)
    log_path = run_dir / files.RANK_LOG.format(placement.rank)
    for mark in (files.PREEMPTED_MARK.format(placement.rank), files.FINISHED_MARK.format(placement.rank)):
        (run_dir / mark).unlink(missing_ok=True)
    try:
        log = open_log(log_path, placement.node)
    except OSError as error:
        raise RankError(describe_on_node(placement.node, log_path, error)) from None
    if spec is None:
        return start(placement, environment, log, command)
    order = RankRequest(placement, environment, tuple(command), str(log_path), layout.setvars, secrets=secret_names())
    return rank_container.start(run_dir, spec, order)


def find_placement(layout: RunLayout, environ: Mapping[str, str]) -> RankEntry:
    """Return this rank's placement.

    torchrun numbers nodes in the order in which they join, so its ranks are found by their node
    and local rank.
    """
    variables = next((names for names in RANK_VARIABLES if environ.keys() >= {*names}), None)
    if variables is None:
        raise RankError(describe("no-launcher", variables=", ".join(rank for rank, _ in RANK_VARIABLES)))
    rank, world_size = (int(environ[name]) for name in variables)
    if world_size != layout.world_size:
        raise RankError(f"the launcher started {world_size} ranks, the layout has {layout.world_size}.")
    if "ORCH_NODE" not in environ:
        return layout.placement(rank)
    node, local_rank = environ["ORCH_NODE"], int(environ["LOCAL_RANK"])
    placement = next((p for p in layout.ranks_on(node) if p.local_rank == local_rank), None)
    if placement is None:
        raise RankError(f"the layout has no local rank {local_rank} on {node}.")
    return placement


def wait(child: Child, placement: RankEntry, oom_kills: int, run_dir: Path) -> int:
    """Wait for the training process while forwarding signals, and report how it ended.

    Args:
        child: the training process.
        placement: of its rank.
        oom_kills: oom_kill_count() before the training process began.
        run_dir: the run's folder, with the rank's log, and files that show why it ends with exit code 0.

    Returns:
        The exit code of this process.
    """
    signals = SignalForwarder(child.pid)
    code, max_rss_bytes, cpu_seconds = child.wait()
    if code == 0 and (run_dir / files.PREEMPTED_MARK.format(placement.rank)).exists():
        code = EX_TEMPFAIL
    finished_mark = run_dir / files.FINISHED_MARK.format(placement.rank)
    finished = code != 0 or finished_mark.exists()
    # torchrun continues when one of its ranks ends.
    waits = not finished and "TORCHELASTIC_RUN_ID" not in os.environ
    finished_mark.unlink(missing_ok=True)
    stopped = signals.stop_requested
    name = signal.Signals(-code).name if code < 0 else None
    exited = Exited(
        node=placement.node,
        code=max(code, 0),
        signal=name,
        stopped=stopped,
        text=log_tail(run_dir / files.RANK_LOG.format(placement.rank)) if code and not stopped else "",
        oom=oom_evidence(child.pid, oom_kills) if name == "SIGKILL" and not stopped else None,
        finished=finished,
        waits=waits,
        max_rss_bytes=max_rss_bytes,
        cpu_seconds=cpu_seconds,
    )
    send(exited)
    if code == EX_TEMPFAIL:  # no failure to the launcher: the other ranks are about to end like this one
        return 0
    if code != 0:
        end_descendants()
        signals.linger()
    elif waits:
        signals.await_stop()
    return code if code >= 0 else 128 - code
