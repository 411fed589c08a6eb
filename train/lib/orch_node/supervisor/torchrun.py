"""Start torchrun on all nodes of a run: `node.py torchrun RUN_DIR [OPTIONS] -- COMMAND`.

This is the launcher of a run, on node0. Nodes and their numbers of ranks come from
RUN_DIR/layout.json. It writes whole lines of all nodes to standard output, and ends when all nodes
have ended or one has failed; then it ends the others. On each node the same program
(`--here NODE`) runs torchrun and ends when the connection closes, so that nothing is left
whatever happens to node0. The first line of the connection is the key of the run's rendezvous.

torch keeps the state of its c10d rendezvous as a pickle in a TCPStore without authentication, so that anybody
who reaches that port can run code on every node. Here the store listens at one address only, and a
state is used only if it is signed with the key. Everything else is torch's implementation.
"""

from __future__ import annotations

import argparse
import hmac
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from orch_node import bound_store, program
from orch_node.line_pipes import MAX_LAUNCHER_LINE_BYTES, Pipes
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.layout import RunLayout
from orch_node.reach import remote_command

RESTARTS = "ORCH_TORCHRUN_RESTARTS"  # how often torchrun has restarted the ranks, the same number on all nodes
END_SECONDS = 8.0  # torchrun gives its workers time; the wrapper 5 s before it kills
TICK_SECONDS = 0.2


def main(argv: list[str]) -> int:
    """Run torchrun on all nodes, or on this one; return the exit code."""
    split = argv.index("--")
    parser = argparse.ArgumentParser(prog="node.py torchrun")
    parser.add_argument("run_dir")
    parser.add_argument("--meet", required=True, help="HOST:PORT of the rendezvous on node0")
    parser.add_argument("--max-restarts", type=int, default=0, help="passed to torchrun")
    parser.add_argument("--min-nodes", type=int, help="passed to torchrun as --nnodes MIN:MAX")
    parser.add_argument("--attempt", type=int, default=int(os.environ.get("ORCH_ATTEMPT", "1")))
    parser.add_argument("--here", metavar="NODE", help="start torchrun on this machine, for this node")
    options = parser.parse_args(argv[:split])
    layout = layouts.parse((Path(options.run_dir) / files.LAYOUT).read_text())
    if not options.here:
        return launch(argv[:split], argv[split:], options, layout.node_names)
    os.environ.update(
        ORCH_NODE=options.here,
        OMP_NUM_THREADS="1",  # the wrapper of each rank sets another value
        # Otherwise torchrun starts a second store for the ranks, which start one themselves.
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )
    # Behind `--`, argparse takes options of the script not for abbreviations of its options.
    return main_on_node([*torchrun_options(options, layout), *argv[split:]])


def torchrun_options(options: argparse.Namespace, layout: RunLayout) -> list[str]:
    """Return torchrun's options on a node. All versions of torch know options with underscores."""
    nodes = layout.node_names
    min_nodes = min(options.min_nodes or len(nodes), len(nodes))
    host, _, port = options.meet.rpartition(":")
    return [
        f"--nnodes={min_nodes}:{len(nodes)}",
        f"--nproc_per_node={len(layout.ranks_on(options.here))}",
        f"--rdzv_backend={RENDEZVOUS}",
        # Each attempt has its own port, because the previous one may still be in use.
        f"--rdzv_endpoint={host}:{int(port) + options.attempt - 1}",
        f"--rdzv_id={Path(options.run_dir).name}-{options.attempt}",
        f"--rdzv_conf=is_host={int(options.here == nodes[0])}",
        f"--max_restarts={options.max_restarts}",
        "--no_python",
    ]


# On node0.


def launch(arguments: list[str], command: list[str], options: argparse.Namespace, nodes: list[str]) -> int:
    """Run torchrun on all nodes; return 0, or the exit code of the first node that failed.

    Args:
        arguments: of this program.
        command: `--` and the command of the ranks.
        options: the parsed arguments.
        nodes: their names, node0 first.
    """
    stop_signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: stop_signals.append(number))
    pipes, children = Pipes(), dict[str, "subprocess.Popen[bytes]"]()
    key = secrets.token_hex(32).encode() + b"\n"
    variables = [f"ORCH_RUN_DIR={options.run_dir}", f"ORCH_ATTEMPT={options.attempt}"]
    for node in nodes:
        on_node = program.command("torchrun", *arguments, f"--attempt={options.attempt}", f"--here={node}", *command)
        argv = on_node if node == nodes[0] else remote_command(node, on_node, variables)
        child = children[node] = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdin is not None
        assert child.stdout is not None
        os.write(child.stdin.fileno(), key)  # it fits into the pipe's buffer
        pipes.add(child.stdout.fileno(), lambda line: os.write(1, line), MAX_LAUNCHER_LINE_BYTES)
    codes = await_end(children, pipes, stop_signals)
    end_all(list(children.values()), pipes)
    for node, code in codes.items():
        if code:
            code = code if code > 0 else 128 - code
            print(f"torchrun on {node} ended with {code}", file=sys.stderr, flush=True)
            return code
    return 128 + signal.SIGTERM if stop_signals else 0


def await_end(
    children: Mapping[str, subprocess.Popen[bytes]], pipes: Pipes, stop_signals: Sequence[int]
) -> dict[str, int | None]:
    """Return the exit codes once all have ended, or one has failed, or this process was asked to stop."""
    while True:
        codes = {node: child.poll() for node, child in children.items()}
        if any(codes.values()) or None not in codes.values() or stop_signals:
            return codes
        pipes.pump(TICK_SECONDS)


def end_all(children: Sequence[subprocess.Popen[bytes]], pipes: Pipes) -> None:
    """Close all connections, which ends torchrun everywhere, and write the last lines."""
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    deadline = time.monotonic() + END_SECONDS + 2.0
    while pipes.selector.get_map() and time.monotonic() < deadline:
        pipes.pump(TICK_SECONDS)
    for child in children:
        child.kill()
        child.wait()


# On each node.


RENDEZVOUS = "orch"
SIZE = 32  # of a signature, in bytes
State = tuple[bytes, Any]


def main_on_node(argv: list[str]) -> int:
    """Run torchrun until it ends or standard input is closed; return 0 if it ends well.

    The first line of standard input is the key of the run.
    """
    connection = open(os.dup(0), "rb", buffering=0)  # noqa: SIM115
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks inherit standard input
    key = connection.readline()
    if not key.endswith(b"\n"):
        return 128 + signal.SIGHUP
    threading.Thread(target=end_with, args=(connection,), daemon=True).start()
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.run import main as run

    rendezvous_handler_registry.register(RENDEZVOUS, lambda parameters: handler(parameters, key))
    # By default torchrun leaves a folder in the node's /tmp after each run. What remains of a killed process is deleted
    # with its run.
    with tempfile.TemporaryDirectory(prefix=".torchrun-", dir=os.environ.get("ORCH_RUN_DIR")) as folder:
        run([f"--log_dir={folder}", *argv])
    return 0


def end_with(connection: FileIO) -> None:
    """End this process when the connection closes."""
    connection.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def handler(parameters: Any, key: bytes) -> Any:
    """Return torch's rendezvous handler for these parameters, with a signed c10d backend."""
    from torch.distributed.elastic.rendezvous import RendezvousStateError, c10d_rendezvous_backend, dynamic_rendezvous

    bound_store.bind_stores(c10d_rendezvous_backend)
    backend, store = c10d_rendezvous_backend.create_backend(parameters)
    signed = SignedBackend(backend, key, RendezvousStateError)
    created = dynamic_rendezvous.create_handler(store, signed, parameters)
    rendezvous = created.next_rendezvous

    def next_rendezvous() -> Any:
        """Record how often all ranks were restarted; torchrun counts a restart only on the node that has failed."""
        result = rendezvous()
        os.environ[RESTARTS] = str(created._state_holder.state.round)
        return result

    created.next_rendezvous = next_rendezvous
    return created


class SignedBackend:
    """A rendezvous backend of torch whose states are signed."""

    name = RENDEZVOUS

    def __init__(self, backend: Any, key: bytes, failure: type[Exception]) -> None:
        """Wrap a backend.

        Args:
            backend: the backend of torch.
            key: signs the states.
            failure: raised for a state without the right signature.
        """
        self.backend = backend
        self.key = key
        self.failure = failure

    def get_state(self) -> State | None:
        """Return the stored state and its token, or None."""
        stored = self.backend.get_state()
        return stored and (self.verify(stored[0]), stored[1])

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Store a state; return the stored one, its token, and whether it is this one."""
        stored = self.backend.set_state(signature(self.key, state) + state, token)
        return stored and (self.verify(stored[0]), *stored[1:])

    def verify(self, signed: bytes) -> bytes:
        """Return the state without its signature; raise `failure` if the signature is wrong."""
        state = signed[SIZE:]
        if not hmac.compare_digest(signed[:SIZE], signature(self.key, state)):
            raise self.failure("a host that is not a node of this run has written to its rendezvous; it is ignored")
        return state


def signature(key: bytes, state: bytes) -> bytes:
    """Return the signature of a state."""
    return hmac.digest(key, state, "sha256")
