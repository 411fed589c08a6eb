"""The stack traces of a run's ranks on this node, and what the kernel has them do."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

from orch_node.agent.processes import Process, handles, kernel_state, send
from orch_node.program import PROGRAM
from orch_node.protocol import files
from orch_node.protocol.agent import RankStack
from orch_node.stack_signal import of_process

WRITE_SECONDS = 0.3  # faulthandler writes those of a rank within milliseconds
LONGEST = 20_000  # characters of one rank
THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
MAIN_FRAME = re.compile(rf'File "{re.escape(str(PROGRAM))}", line \d+ in <module>')
FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def collect(run_dir: Path, ranks: list[Process]) -> dict[str, RankStack]:
    """Rank -> its stack traces and the state of its process. One that cannot answer has none."""
    ranks = [one for one in ranks if one.rank is not None]
    logs = {one.pid: run_dir / files.rank_log(one.rank or 0) for one in ranks}
    sizes = {pid: size_of(log) for pid, log in logs.items()}
    if any([ask(one) for one in ranks]):
        time.sleep(WRITE_SECONDS)
    return {
        str(process.rank): RankStack(
            pid=process.pid,
            stack=written_since(logs[process.pid], sizes[process.pid]),
            kernel=kernel_state(process.pid),
        )
        for process in ranks
    }


def ask(process: Process) -> bool:
    """Have a rank write its stack traces into its log; -> whether it will."""
    number = of_process(process.pid)
    if not number or not handles(process.pid, number):  # it would die of it
        return False
    return send(process, number)


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
    """The thread that began in node.py; faulthandler lists the threads in no useful order."""
    threads = THREAD.split(stack)
    return next((one for one in threads if MAIN_FRAME.search(one)), threads[-1])


def where(answer: RankStack) -> str:
    """One line for people: the innermost Python frames of the main thread, or the kernel's word."""
    main_thread = of_main_thread(answer.stack)
    found = FRAME.findall(main_thread)
    of_script = list(itertools.takewhile(lambda frame: "runpy" not in frame[0], found))
    frames = [f"{Path(path).name}:{line} {name}" for path, line, name in of_script or found]
    kernel = answer.kernel
    if not frames:
        state, wchan = kernel.get("state", "?"), kernel.get("wchan", "?")
        return f"no Python stack; process state {state}, {wchan}"
    return " < ".join(frames[:4])
