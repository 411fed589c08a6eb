"""Starts a rank's training process in its container: `python contained.py RUN_DIR`.

rank.py, on the node, gives it one line of JSON on standard input, its order, and keeps that pipe
open: when it closes nobody waits for the rank any more, and the training process is killed.
Standard output goes to rank.py: the rank's events, and what this process itself has to say.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import facts
from pod_mpi import rank_variables
from rank import open_log, start
from setvars import SetvarsError, in_packages, sourced


def main() -> int:
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        order = json.loads(stdin.readline())
    events = os.dup(1)
    os.environ["ORCH_EVENTS_FD"] = str(events)
    try:
        environment = rank_environment(order, events)
    except SetvarsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    child = start(order["place"], environment, open_log(Path(order["log"])), order["command"])
    # Not ignored: what is ignored stays so in the programs that a process becomes.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: send(child, signal.SIGTERM))
    say(events, pid=child)
    threading.Thread(target=end_with_rank, args=(child,), daemon=True).start()
    _, status, usage = os.wait4(child, 0)
    cpu = usage.ru_utime + usage.ru_stime
    say(events, status=status, max_rss_bytes=usage.ru_maxrss * 1024, cpu_seconds=cpu)
    return 0


def rank_environment(order: dict[str, Any], events: int) -> dict[str, str]:
    """The image's environment, then the run's, with what is found in the image to preload."""
    config = {"preload": order["preload"], "env": order["environment"]}
    return {
        **os.environ,
        **setvars(order),
        **rank_variables(config, facts.libraries(Path(sys.prefix))),
        "ORCH_EVENTS_FD": str(events),
    }


def setvars(order: dict[str, Any]) -> dict[str, str]:
    script = order["setvars"]
    return sourced(in_packages(script), os.environ) if script else {}


def end_with_rank(child: int) -> None:
    while os.read(0, 1):
        pass
    send(child, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def say(events: int, **fields: object) -> None:
    os.write(events, json.dumps({"contained": fields}).encode() + b"\n")


if __name__ == "__main__":
    raise SystemExit(main())
