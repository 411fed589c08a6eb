"""The signals that orch sends to a rank: that of ORCH_STACK_SIGNAL, at which it writes its stack
traces into its log, and that of ORCH_PREEMPT_SIGNAL, at which it makes room (preemption.py).

Scripts, Lightning and batch systems use SIGUSR1 and SIGUSR2 for their own ends, preemption mostly.
The real-time signals are nobody's: glibc keeps the first two, systemd gives a meaning to some of
SIGRTMIN+0 to +6 and +13 to +29 where they reach itself (systemd(1)), profilers take low ones.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping

VARIABLE, PREEMPT = "ORCH_STACK_SIGNAL", "ORCH_PREEMPT_SIGNAL"
DEFAULT = signal.SIGRTMIN + 11
DEFAULTS = {VARIABLE: DEFAULT, PREEMPT: signal.SIGRTMIN + 12}
NEVER = ("none", "0")


def chosen(environ: Mapping[str, str], variable: str = VARIABLE) -> int:
    """The signal's number; 0 for none. Raises ValueError for what is no signal."""
    words = environ.get(variable, "").strip()
    if not words:
        return DEFAULTS[variable]
    return 0 if words.lower() in NEVER else number_of(words, variable)


def number_of(words: str, variable: str = VARIABLE) -> int:
    """SIGUSR2, USR2, SIGRTMIN+5 or 39. Raises ValueError."""
    name, _, more = words.upper().partition("+")
    known = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
    number = int(words) if words.isdigit() else None
    if isinstance(known, signal.Signals) and re.fullmatch(r"\d*", more):
        number = known + int(more or 0)
    if number not in set(map(int, signal.valid_signals())) - {signal.SIGKILL, signal.SIGSTOP}:
        raise ValueError(f"{variable} is {words!r}: no signal that a process can handle.")
    return int(number)


def name_of(number: int) -> str:
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return signal.Signals(number).name


def of_process(pid: int, variable: str = VARIABLE) -> int:
    """That of a rank's training process, as its wrapper has told it; 0 for none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = (one.partition(b"=") for one in file.read().split(b"\0"))
    except OSError:
        return 0
    found = {name: value for name, _, value in pairs}.get(os.fsencode(variable), b"0")
    return int(found) if found.isdigit() else 0
