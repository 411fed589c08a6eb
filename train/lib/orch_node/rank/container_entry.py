"""Starts a rank's training process in its container: `node.py contained-rank RUN_DIR`.

The wrapper on the node gives it one line of JSON on standard input, its order, and keeps that pipe
open: when it closes nobody waits for the rank any more, and the training process is killed.
Standard output goes to the wrapper: the rank's events, and what this process itself has to say.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from orch_node.pod.mpi import rank_variables
from orch_node.process_handle import ProcessHandle
from orch_node.protocol import values
from orch_node.protocol.container import RankOrder
from orch_node.rank.log import open_log
from orch_node.rank.process import start
from orch_node.rank.setvars import SetvarsError, in_packages, sourced
from orch_node.standalone import facts


def main(argv: list[str]) -> int:
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        order = values.parse(RankOrder, stdin.readline(), "a rank's order")
    os.environ.update(order.given)
    events = os.dup(1)
    os.environ["ORCH_EVENTS_FD"] = str(events)
    try:
        environment = rank_environment(order, events)
    except SetvarsError as error:
        print(f"error: {error}. To repair the image: `orch image build`.", file=sys.stderr)
        return 1
    child = start(order.placement, environment, open_log(Path(order.log)), order.command)
    rank = ProcessHandle(child)
    # Not ignored: what is ignored stays so in the programs that a process becomes.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: rank.send(signal.SIGTERM))
    say(events, pid=child)
    threading.Thread(target=end_with_rank, args=(rank,), daemon=True).start()
    _, status, usage = os.wait4(child, 0)
    cpu = usage.ru_utime + usage.ru_stime
    say(events, status=status, max_rss_bytes=usage.ru_maxrss * 1024, cpu_seconds=cpu)
    return 0


def rank_environment(order: RankOrder, events: int) -> dict[str, str]:
    """The image's environment, then the run's, with what is found in the image to preload."""
    return {
        **os.environ,
        **setvars(order),
        **rank_variables(order.environment, order.preload, facts.libraries(Path(sys.prefix))),
        "ORCH_EVENTS_FD": str(events),
    }


def setvars(order: RankOrder) -> dict[str, str]:
    return sourced(in_packages(order.setvars), os.environ) if order.setvars else {}


def end_with_rank(rank: ProcessHandle) -> None:
    while os.read(0, 1):
        pass
    rank.send(signal.SIGKILL)


def say(events: int, **fields: object) -> None:
    os.write(events, json.dumps({"contained": fields}).encode() + b"\n")
