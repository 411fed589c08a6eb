"""Start a rank's training process in its container: `node.py contained-rank RUN_DIR`.

The wrapper on the node writes a RankRequest, one line of JSON, to standard input and keeps that pipe
open. When it closes, nobody waits for the rank any more, and the training process is killed.
Standard output goes to the wrapper: the rank's events, and those of this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from orch_node.agent.containers import MARK
from orch_node.machine import ProcessHandle
from orch_node.protocol import values
from orch_node.protocol.container import RankRequest
from orch_node.protocol.environment import override, rank_variables
from orch_node.rank.checks import RankError
from orch_node.rank.environment import sourced_variables
from orch_node.rank.process import open_log, start
from orch_node.standalone import facts


def main(argv: list[str]) -> int:
    """Start the rank, pass signals on, and report how it ends."""
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        order = values.parse(RankRequest, stdin.readline(), "a rank's order")
    os.environ.update(order.given)
    events = os.dup(1)
    os.environ["ORCH_EVENTS_FD"] = str(events)
    try:
        environment = rank_environment(order, events)
    except RankError as error:
        print(f"error: {error}. To repair the image: `orch image build`.", file=sys.stderr)
        return 1
    child = start(order.placement, environment, open_log(Path(order.log), order.placement.node), order.command)
    rank = ProcessHandle(child.pid)
    # Handle the signals, do not ignore them: exec() keeps ignored signals ignored.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: rank.send(signal.SIGTERM))
    write_event(events, pid=child.pid)
    threading.Thread(target=kill_with_wrapper, args=(rank,), daemon=True).start()
    code, max_rss_bytes, cpu_seconds = child.wait()
    write_event(events, code=code, max_rss_bytes=max_rss_bytes, cpu_seconds=cpu_seconds)
    return 0


def rank_environment(order: RankRequest, events: int) -> dict[str, str]:
    """Return the image's environment, then the run's, with the image's libraries to preload, then the user's file."""
    setvars = sourced_variables(order.setvars, os.environ) if order.setvars else {}
    settings = rank_variables(order.environment, order.preload, facts.libraries(Path(sys.prefix)))
    return {
        **os.environ,
        **setvars,
        **override(settings, order.environment, order.given),
        "ORCH_EVENTS_FD": str(events),
    }


def kill_with_wrapper(rank: ProcessHandle) -> None:
    """Kill the rank when the wrapper on the node closes standard input."""
    while os.read(0, 1):
        pass
    rank.send(signal.SIGKILL)


def write_event(events: int, **fields: object) -> None:
    os.write(events, MARK + json.dumps(fields).encode() + b"\n")
