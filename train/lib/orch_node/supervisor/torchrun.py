"""Start torchrun on all nodes of a run: `node.py torchrun RUN_DIR [OPTIONS] -- COMMAND`.

This is the launcher of a run, on node0. Nodes and their numbers of ranks come from
RUN_DIR/layout.json. It writes whole lines of all nodes to standard output, and ends when all nodes
have ended or one has failed; then it ends the others. On each node the same program
(`--here NODE`) starts torchrun and ends it when the connection closes, so that nothing is left
whatever happens to node0. The first line of the connection is the key of the run's rendezvous
(`node.py torchrun-agent`).

torch keeps the state of its c10d rendezvous as a pickle in a TCPStore without authentication, so that anybody
who reaches that port can run code on every node. Here the store listens at one address only, and a
state is used only if it is signed with the key. Everything else is torch's implementation.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import importlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from orch_node import bound_store, program
from orch_node.line_pipes import MAX_LAUNCHER_LINE_BYTES, Pipes
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.layout import RunLayout
from orch_node.reach import remote_command

END_SECONDS = 8.0  # torchrun gives its workers time; the wrapper 5 s before it kills
TICK_SECONDS = 0.2


def main(argv: list[str]) -> int:
    """Run torchrun on all nodes, or on this one; return the exit code."""
    split = argv.index("--")
    options = parse(argv[:split])
    layout = layouts.parse((Path(options.run_dir) / files.LAYOUT).read_text())
    if options.here:
        return run_on_node(torchrun(options, layout, argv[split + 1 :]), options.here)
    return TorchrunLauncher(argv, options, layout.node_names).run()


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="node.py torchrun")
    parser.add_argument("run_dir")
    parser.add_argument("--meet", required=True, help="HOST:PORT of the rendezvous on node0")
    parser.add_argument("--max-restarts", type=int, default=0, help="passed to torchrun")
    parser.add_argument("--min-nodes", type=int, help="passed to torchrun as --nnodes MIN:MAX")
    parser.add_argument("--attempt", type=int, default=int(os.environ.get("ORCH_ATTEMPT", "1")))
    parser.add_argument("--here", metavar="NODE", help="start torchrun on this machine, for this node")
    return parser.parse_args(argv)


def torchrun(options: argparse.Namespace, layout: RunLayout, command: list[str]) -> list[str]:
    """Return torchrun's command for a node. All versions of torch know options with underscores."""
    nodes = layout.node_names
    min_nodes = min(options.min_nodes or len(nodes), len(nodes))
    host, _, port = options.meet.rpartition(":")
    return [
        *program.command("torchrun-agent"),
        f"--nnodes={min_nodes}:{len(nodes)}",
        f"--nproc_per_node={len(layout.ranks_on(options.here))}",
        f"--rdzv_backend={RENDEZVOUS}",
        # Each attempt has its own port, because the previous one may still be in use.
        f"--rdzv_endpoint={host}:{int(port) + options.attempt - 1}",
        f"--rdzv_id={Path(options.run_dir).name}-{options.attempt}",
        f"--rdzv_conf=is_host={int(options.here == nodes[0])}",
        f"--max_restarts={options.max_restarts}",
        "--no_python",
        "--",  # otherwise argparse takes options of the script for abbreviations of its options
        *command,
    ]


# On each node.


def run_on_node(command: list[str], node: str) -> int:
    """Run torchrun until it ends or the connection closes; return its exit code."""
    environment = {
        **os.environ,
        "ORCH_NODE": node,
        "OMP_NUM_THREADS": "1",  # the wrapper of each rank sets another value
        # Otherwise torchrun starts a second store for the ranks, which start one themselves.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    key = read_key()
    child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
    assert child.stdin is not None
    with child.stdin as pipe:
        pipe.write(key)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: end(child))
    pipes = Pipes()
    pipes.add(0, lambda line: None)
    while child.poll() is None:
        pipes.pump(TICK_SECONDS)
        if not pipes.open(0):
            end(child)
    return exit_code(child)


def read_key() -> bytes:
    """Return the first line of standard input, and read nothing behind it."""
    key = b""
    while not key.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(128 + signal.SIGHUP)
        key += byte
    return key


def end(child: subprocess.Popen[bytes]) -> NoReturn:
    """End torchrun, and exit with its exit code."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
    raise SystemExit(exit_code(child))


def exit_code(child: subprocess.Popen[bytes]) -> int:
    """Return a child's exit code as a shell does."""
    code = child.wait()
    return code if code >= 0 else 128 - code


# On node0.


class TorchrunLauncher:
    """The torchruns of all nodes."""

    def __init__(self, argv: list[str], options: argparse.Namespace, nodes: list[str]) -> None:
        """Start torchrun on all nodes."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.handle_stop_signal)
        self.stopped = False
        self.pipes = Pipes()
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        key = secrets.token_hex(32).encode() + b"\n"
        for node in nodes:
            command = node_command(argv, options, node, first=node == nodes[0])
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert child.stdin is not None
            assert child.stdout is not None
            os.write(child.stdin.fileno(), key)  # it fits into the pipe's buffer
            self.pipes.add(child.stdout.fileno(), write_line, MAX_LAUNCHER_LINE_BYTES)
            self.children[node] = child

    def handle_stop_signal(self, number: int, frame: FrameType | None) -> None:
        """Remember that the run has to stop."""
        self.stopped = True

    def run(self) -> int:
        """Wait for the end; return 0, or the exit code of the first node that failed."""
        code = 0
        while not code and not self.stopped and any(child.poll() is None for child in self.children.values()):
            self.pipes.pump(TICK_SECONDS)
            for node, child in self.children.items():
                if child.poll():
                    code = exit_code(child)
                    print(f"torchrun on {node} ended with {code}", file=sys.stderr, flush=True)
                    break
        self.close()
        return code or (128 + signal.SIGTERM if self.stopped else 0)

    def close(self) -> None:
        """Close all connections, which ends torchrun everywhere, and write the last lines."""
        for child in self.children.values():
            assert child.stdin is not None
            child.stdin.close()
        deadline = time.monotonic() + END_SECONDS + 2.0
        while self.pipes.handlers and time.monotonic() < deadline:
            self.pipes.pump(TICK_SECONDS)
        for child in self.children.values():
            child.kill()
            child.wait()


def write_line(line: bytes) -> None:
    """Write a line of a node to standard output."""
    os.write(1, line)


def node_command(argv: list[str], options: argparse.Namespace, node: str, *, first: bool) -> list[str]:
    """Return the command that starts this program on a node."""
    split = argv.index("--")
    arguments = [*argv[:split], f"--attempt={options.attempt}", f"--here={node}", *argv[split:]]
    command = program.command("torchrun", *arguments)
    if first:
        return command
    carried = [f"ORCH_RUN_DIR={options.run_dir}", f"ORCH_ATTEMPT={options.attempt}"]
    return remote_command(node, command, carried)


RENDEZVOUS = "orch"
DIGEST = hashlib.sha256
SIZE = DIGEST().digest_size
ELASTIC = "torch.distributed.elastic.rendezvous"
State = tuple[bytes, Any]


def main_agent(argv: list[str]) -> int:
    """Run torchrun on this node, with the key of the run in standard input; return 0 if it ends well."""
    key = sys.stdin.buffer.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks inherit standard input
    registry = importlib.import_module(f"{ELASTIC}").rendezvous_handler_registry
    registry.register(RENDEZVOUS, lambda parameters: handler(parameters, key))
    run = importlib.import_module("torch.distributed.run").main
    # By default torchrun leaves a folder in the node's /tmp after each run. What remains of a killed process is deleted
    # with its run.
    with tempfile.TemporaryDirectory(prefix=".torchrun-", dir=os.environ.get("ORCH_RUN_DIR")) as folder:
        run([f"--log_dir={folder}", *argv])
    return 0


def handler(parameters: Any, key: bytes) -> Any:
    """Return torch's rendezvous handler for these parameters, with a signed c10d backend."""
    c10d = importlib.import_module(f"{ELASTIC}.c10d_rendezvous_backend")
    dynamic = importlib.import_module(f"{ELASTIC}.dynamic_rendezvous")
    bound_store.bind_stores(c10d)
    backend, store = c10d.create_backend(parameters)
    failure = importlib.import_module(f"{ELASTIC}.api").RendezvousStateError
    return dynamic.create_handler(store, SignedBackend(backend, key, failure), parameters)


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
            raise self.failure(
                "a host that is not a node of this run has written to its rendezvous; the data was ignored"
            )
        return state


def signature(key: bytes, state: bytes) -> bytes:
    """Return the signature of a state."""
    return hmac.new(key, state, DIGEST).digest()
