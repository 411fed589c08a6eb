"""The Python stacks of a run's ranks on this node, and what the kernel has them do."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

from processes import Process, handles, kernel_state, send

WRITE_SECONDS = 0.3  # faulthandler writes the stacks of a rank within milliseconds
LONGEST = 20_000  # characters of one rank's stacks
THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
MAIN_FRAME = re.compile(r'rank_main\.py", line \d+ in <module>')
FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def collect(run_dir: Path, ranks: list[Process]) -> dict[int, dict[str, Any]]:
    """Rank -> its stacks and the state of its process. A rank that cannot answer has no stack."""
    logs = {process.pid: run_dir / "ranks" / f"rank-{process.rank}.log" for process in ranks}
    sizes = {pid: size_of(log) for pid, log in logs.items()}
    asked = [process for process in ranks if handles(process.pid, signal.SIGUSR1)]
    for process in asked:
        send(process.pid, signal.SIGUSR1)
    if asked:
        time.sleep(WRITE_SECONDS)
    return {
        process.rank: {
            "pid": process.pid,
            "stack": written_since(logs[process.pid], sizes[process.pid]),
            "kernel": kernel_state(process.pid),
        }
        for process in ranks
        if process.rank is not None
    }


def size_of(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def written_since(log: Path, size: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(size)
            return file.read(LONGEST).decode(errors="replace")
    except OSError:
        return ""


def of_main_thread(stack: str) -> str:
    """The thread that began in rank_main.py; faulthandler lists the threads in no useful order."""
    threads = THREAD.split(stack)
    return next((one for one in threads if MAIN_FRAME.search(one)), threads[-1])


def where(answer: dict[str, Any]) -> str:
    """One line for people: the innermost Python frames of the main thread, or the kernel's word."""
    main_thread = of_main_thread(answer["stack"])
    frames = [f"{Path(path).name}:{line} {name}" for path, line, name in FRAME.findall(main_thread)]
    kernel = answer["kernel"]
    if not frames:
        return f"no Python stack; process state {kernel['state']}, {kernel.get('wchan', '?')}"
    return " < ".join(frames[:4])
