"""Send signals to a run's ranks on this node: collect stack traces, or request a checkpoint before preemption."""

from __future__ import annotations

import itertools
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from orch_node import machine
from orch_node.agent.processes import handles_signal, kernel_state, signal_of_process
from orch_node.program import PROGRAM
from orch_node.protocol import files
from orch_node.protocol.agent import RankStack
from orch_node.protocol.environment import PREEMPT_SIGNAL
from orch_node.protocol.outcome import ProcessRecord
from orch_node.tail import last_text

WRITE_SECONDS = 0.3  # faulthandler writes the traces of a rank within milliseconds
MAX_CHARACTERS = 20_000  # of one rank
THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
MAIN_FRAME = re.compile(rf'File "{re.escape(str(PROGRAM))}", line \d+ in <module>')
FRAME = re.compile(r'^  File "(?!<frozen importlib|.*/orch_node/)(.+)", line (\d+) in (.+)$', re.MULTILINE)
OUTSIDE_SCRIPT = re.compile(rf"runpy|^{re.escape(str(PROGRAM))}$")
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3")
SHOWN_FRAMES = 4


def collect(run_dir: Path, processes: list[ProcessRecord]) -> dict[str, RankStack]:
    """Return the stack traces and kernel state of each rank; no traces if it does not respond."""
    ranks = {process.rank: process for process in processes if process.rank is not None}
    logs = {rank: run_dir / files.RANK_LOG.format(rank) for rank in ranks}
    sizes = {rank: size_of(log) for rank, log in logs.items()}
    if any([send_first_handled(process, signal_of_process(process.pid)) for process in ranks.values()]):
        time.sleep(WRITE_SECONDS)
    return {
        str(rank): RankStack(last_text(logs[rank], MAX_CHARACTERS, sizes[rank]), kernel_state(process.pid))
        for rank, process in ranks.items()
    }


def send_first_handled(process: ProcessRecord, *numbers: int) -> bool:
    """Send the first of these signals that a process handles, since others would end it; return whether it got one."""
    number = next((number for number in numbers if number and handles_signal(process.pid, number)), 0)
    return bool(number) and machine.send_signal(*process.key, number)


def size_of(log: Path) -> int:
    """Return the size of a log in bytes, 0 if there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def describe_position(stack: RankStack) -> str:
    """Return the innermost Python frames of the main thread with that of the script, or its state in the kernel."""
    threads = THREAD.split(stack.stack)  # faulthandler does not list the main thread, which began in node.py, first
    frames = FRAME.findall(next((thread for thread in threads if MAIN_FRAME.search(thread)), threads[-1]))
    script_frames = list(itertools.takewhile(lambda frame: not OUTSIDE_SCRIPT.search(frame[0]), frames))
    positions = [f"{Path(path).name}:{line} {name}" for path, line, name in script_frames or frames]
    if not positions:
        state, wchan = stack.kernel.get("state", "?"), stack.kernel.get("wchan", "?")
        return f"no Python stack; process state {state}, {wchan}"
    script = next((index for index, frame in enumerate(script_frames) if not LIBRARY.search(frame[0])), 0)
    outer = ["...", positions[script]] if script >= SHOWN_FRAMES else []
    return " < ".join([*positions[:SHOWN_FRAMES], *outer])


def preempt(processes: Iterable[ProcessRecord]) -> tuple[int, ...]:
    """Ask ranks to end after a checkpoint: by the signal of `orch_node.preemption`, or SIGTERM if they handle that.

    Returns:
        The ranks that were asked. The signal would kill the others, so they do not get it.
    """
    return tuple(
        process.rank
        for process in processes
        if process.rank is not None
        if send_first_handled(process, signal_of_process(process.pid, PREEMPT_SIGNAL), signal.SIGTERM)
    )
