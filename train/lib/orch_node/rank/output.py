"""Why a rank has ended: the end of its log, what its script wrote to standard error, and the kernel's kills.

What shows that memory ran out, the most reliable first: the kernel's log (dmesg as root, or where everybody may read
it), and the node's counter in /proc/vmstat, which everybody may read, and which counts the kills in cgroups, too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

from orch_node.agent import processes
from orch_node.events import send
from orch_node.protocol.environment import STACK_SIGNAL, signal_name
from orch_node.protocol.events import Unanswered
from orch_node.protocol.failures import without_frames
from orch_node.rank.checks import describe
from orch_node.standalone import facts
from orch_node.streams import MARKS

VMSTAT = Path("/proc/vmstat")
DMESG_SECONDS = 10.0
TAIL_BYTES = 2000
FATAL = b"Fatal Python error: "  # what faulthandler writes before its stack traces
CURRENT_THREAD = b"\nCurrent thread 0x"
CPP_FRAME = re.compile(rb"^frame #\d+: .*\n", re.MULTILINE)  # of torch's C++ code; dozens follow a message
SEARCHED_BYTES = 1 << 16  # of the log's end; enough for the stack traces of many threads
MAX_WRITES = 400  # the newest writes to sys.stderr; a line may take several
TRACEBACK = "Traceback (most recent call last):"
OMITTED = ("orch: ", "See 'docker ", "Run 'docker ")  # lines of orch itself, and those that follow an error of docker
TORCH_WARNING = re.compile(r"\[W\d+ [\d:.]+ \S+:\d+\] ")  # of its C++ code
# Source lines below a warning, progress bars, warnings, separators and what orch itself prints.
NO_REASON = re.compile(r"\s|.*\r|orch: |.*\d: \w*Warning: |.*\b(DEBUG|INFO|WARNING)\b|\[?W\d{4} |[\W_]*$")


def log_tail(log: Path) -> str:
    """Return the end of a rank's log, as the reason for a signal that ended the rank.

    What precedes the stack traces of faulthandler matters more than the traces, and lines of orch
    itself, hints of docker and warnings of torch's C++ code are no reason.
    """
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - SEARCHED_BYTES))
        content = file.read()
    for mark in MARKS.values():
        content = content.replace(mark.encode(), b"")
    content = CPP_FRAME.sub(b"", content)
    begin = max(0, len(content) - TAIL_BYTES)
    if (fatal := content.rfind(FATAL)) >= 0:
        begin = min(begin, max(0, fatal - TAIL_BYTES // 2))
        if (current := content.find(CURRENT_THREAD, fatal)) > begin + TAIL_BYTES // 2:  # after many other threads
            content = content[: content.find(b"\n", fatal) + 1] + content[current:]
    tail = content[begin : begin + TAIL_BYTES].decode(errors="replace")
    lines = (line for line in tail.split("\n") if not line.startswith(OMITTED) and not TORCH_WARNING.match(line))
    return "\n".join(lines).strip()


def record_stderr() -> deque[str]:
    """Return what Python code writes to sys.stderr from now on: before sys.exit(2), it contains the reason."""
    pieces: deque[str] = deque(maxlen=MAX_WRITES)
    original = sys.stderr.write

    def write(text: str) -> int:
        written = original(text)
        pieces.append(text)
        return written

    # Patch the stream itself: modules that already hold a reference are recorded as well.
    sys.stderr.write = write  # type: ignore[method-assign]
    return pieces


def reason_in(text: str) -> str:
    """Return the last traceback of a text, else the last line that may be a reason, else nothing."""
    lines = without_frames(text).split("\n")
    if TRACEBACK in lines:
        begin = len(lines) - 1 - lines[::-1].index(TRACEBACK)
        return "\n".join(lines[begin:]).rstrip()
    reasons = [line for line in lines if line and not NO_REASON.match(line)]
    return reasons[-1].strip() if reasons else ""


class StackTraces:
    """The handler of the stack signal; a handler of the script has precedence."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.number = processes.signal_of_process(os.getpid())  # 0: no stack traces
        self.is_taken = bool(self.number) and processes.handles_signal(os.getpid(), self.number)
        if self.number and not self.is_taken:
            faulthandler.register(self.number, all_threads=True)

    def check_handler(self) -> None:
        """Report once if the script handles the signal itself."""
        if self.number and (self.is_taken or signal.getsignal(self.number) not in (None, signal.SIG_DFL)):
            text = describe("no-stack-traces", signal=signal_name(self.number), variable=STACK_SIGNAL)
            self.number = 0
            print(f"orch: {text}", file=sys.stderr, flush=True)
            send(Unanswered(node=self.node, text=text))


def oom_evidence(pid: int, initial_count: int) -> str | None:
    """Return the text that shows that a process was killed because memory ran out, or None.

    Args:
        pid: of the process.
        initial_count: what oom_kill_count() returned before the process began.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # only some users may read the kernel's log
        process = subprocess.run(["dmesg"], capture_output=True, stdin=subprocess.DEVNULL, timeout=DMESG_SECONDS)
        log = process.stdout.decode(errors="replace")
        if match := re.search(rf"^(?:\[[ \d.]+\] )?(.*Killed process {pid}\b.*)$", log, re.MULTILINE):
            return match.group(1)
    count = oom_kill_count()
    return f"oom_kill in {VMSTAT} rose from {initial_count} to {count}" if count > initial_count else None


def oom_kill_count() -> int:
    match = re.search(r"^oom_kill (\d+)$", facts.read_text(VMSTAT), re.MULTILINE)
    return int(match.group(1)) if match else 0
