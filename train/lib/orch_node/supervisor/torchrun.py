"""Starts torchrun on every node of a run at once: `node.py torchrun RUN_DIR [OPTIONS] -- COMMAND`.

The launcher of a run on node0. Nodes and their numbers of ranks come from RUN_DIR/layout.json.
Whole lines of all nodes go to standard output. It ends when all have ended, or as soon as one has
ended badly: then the others are ended too. On each node it runs itself (`--here NODE`) above
torchrun, which ends when the connection does, so nothing is left whatever becomes of node0. The
first line of that connection is the key of the run's rendezvous (torchrun_agent.py).
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from orch_node import program
from orch_node.line_pipes import LONGEST_OF_LAUNCHER, Pipes
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.layout import RunLayout
from orch_node.reach import there
from orch_node.supervisor.torchrun_agent import RENDEZVOUS

END_SECONDS = 8.0  # torchrun gives its workers time; the wrapper 5 s before it kills
TICK_SECONDS = 0.2


def main(argv: list[str]) -> int:
    if "--" not in argv:
        print("usage: node.py torchrun RUN_DIR --meet HOST:PORT [OPTIONS] -- COMMAND", file=sys.stderr)
        return 2
    split = argv.index("--")
    options = parse(argv[:split])
    layout = layouts.parse((Path(options.run_dir) / files.LAYOUT).read_text())
    if options.here:
        return here(torchrun(options, layout, argv[split + 1 :]), options.here)
    return Spread(argv, options, layout.node_names).run()


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="node.py torchrun")
    parser.add_argument("run_dir")
    parser.add_argument("--meet", required=True, help="HOST:PORT of the rendezvous, on node0")
    parser.add_argument("--max-restarts", type=int, default=0, help="passed on to torchrun")
    parser.add_argument("--min-nodes", type=int, help="passed on: --nnodes MIN:MAX")
    parser.add_argument("--attempt", type=int, default=int(os.environ.get("ORCH_ATTEMPT", "1")))
    parser.add_argument("--here", metavar="NODE", help="start torchrun for this node, here")
    return parser.parse_args(argv)


def torchrun(options: argparse.Namespace, layout: RunLayout, command: list[str]) -> list[str]:
    """The command of one node. Names with underscores are those that all versions know."""
    nodes = layout.node_names
    fewest = min(options.min_nodes or len(nodes), len(nodes))
    host, _, port = options.meet.rpartition(":")
    return [
        *program.command("torchrun-agent"),
        f"--nnodes={fewest}:{len(nodes)}",
        f"--nproc_per_node={len(layout.on(options.here))}",
        f"--rdzv_backend={RENDEZVOUS}",
        # Another one for each attempt: the last one's may still be held.
        f"--rdzv_endpoint={host}:{int(port) + options.attempt - 1}",
        f"--rdzv_id={Path(options.run_dir).name}-{options.attempt}",
        f"--rdzv_conf=is_host={int(options.here == nodes[0])}",
        f"--max_restarts={options.max_restarts}",
        "--no_python",
        "--",  # else its argparse finds abbreviations of its own options in the script's
        *command,
    ]


# On each node.


def here(command: list[str], node: str) -> int:
    """Run torchrun until it ends, or until nobody listens any more; -> its exit code."""
    environment = {
        **os.environ,
        "ORCH_NODE": node,
        "OMP_NUM_THREADS": "1",  # a rank's own comes later
        # Else a second store for the ranks, which have one of their own.
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
    return code_of(child)


def read_key() -> bytes:
    """Byte by byte: what follows the line is the connection's end."""
    key = b""
    while not key.endswith(b"\n"):
        one = os.read(0, 1)
        if not one:
            raise SystemExit(128 + signal.SIGHUP)
        key += one
    return key


def end(child: subprocess.Popen[bytes]) -> NoReturn:
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
    raise SystemExit(code_of(child))


def code_of(child: subprocess.Popen[bytes]) -> int:
    code = child.wait()
    return code if code >= 0 else 128 - code


# On node0.


class Spread:
    """All nodes' torchruns, started at the same time."""

    def __init__(self, argv: list[str], options: argparse.Namespace, nodes: list[str]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.ask_to_stop)
        self.stopped = False
        self.pipes = Pipes()
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        key = secrets.token_hex(32).encode() + b"\n"
        for node in nodes:
            command = node_command(argv, options, node, first=node == nodes[0])
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert child.stdin is not None
            assert child.stdout is not None
            os.write(child.stdin.fileno(), key)  # a pipe has room for it
            self.pipes.add(child.stdout.fileno(), pass_on, LONGEST_OF_LAUNCHER)
            self.children[node] = child

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True

    def run(self) -> int:
        """-> 0 if all nodes ended well, else the exit code of the first that did not."""
        code = 0
        while not code and not self.stopped and any(self.running()):
            self.pipes.pump(TICK_SECONDS)
            for node, child in self.children.items():
                if child.poll():
                    code = code_of(child)
                    print(f"torchrun on {node} ended with {code}", file=sys.stderr, flush=True)
                    break
        self.finish()
        return code or (128 + signal.SIGTERM if self.stopped else 0)

    def running(self) -> list[str]:
        return [node for node, child in self.children.items() if child.poll() is None]

    def finish(self) -> None:
        """Let go of the nodes, which ends those that still run, and pass on their last lines."""
        for child in self.children.values():
            assert child.stdin is not None
            child.stdin.close()
        deadline = time.monotonic() + END_SECONDS + 2.0
        while any(self.open()) and time.monotonic() < deadline:
            self.pipes.pump(TICK_SECONDS)
        for child in self.children.values():
            child.kill()
            child.wait()

    def open(self) -> list[str]:
        found = self.children.items()
        return [name for name, one in found if one.stdout and self.pipes.open(one.stdout.fileno())]


def pass_on(line: bytes) -> None:
    os.write(1, line)


def node_command(argv: list[str], options: argparse.Namespace, node: str, *, first: bool) -> list[str]:
    """This program on the node."""
    split = argv.index("--")
    own = [*argv[:split], f"--attempt={options.attempt}", f"--here={node}", *argv[split:]]
    command = program.command("torchrun", *own)
    if first:
        return command
    carried = [f"ORCH_RUN_DIR={options.run_dir}", f"ORCH_ATTEMPT={options.attempt}"]
    return there(node, command, carried)
