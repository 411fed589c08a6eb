"""The signals that orch sends to ranks.

At ORCH_STACK_SIGNAL a rank writes its stack traces to its log; at ORCH_PREEMPT_SIGNAL it writes a
checkpoint and ends (preemption.py). SIGUSR1 and SIGUSR2 are avoided because scripts, Lightning and
batch systems use them, mostly for preemption. Of the real-time signals, glibc reserves the first
two, systemd uses some of SIGRTMIN+0 to +6 and +13 to +29 itself (systemd(1)), and profilers use low
ones.
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


def configured_signal(environ: Mapping[str, str], variable: str = VARIABLE) -> int:
    """Return the number of the signal in a variable; 0 for none.

    Raises:
        ValueError: if the value is not a signal.
    """
    value = environ.get(variable, "").strip()
    if not value:
        return DEFAULTS[variable]
    return 0 if value.lower() in NEVER else parse_signal(value, variable)


def parse_signal(value: str, variable: str = VARIABLE) -> int:
    """Return the number of a signal such as SIGUSR2, USR2, SIGRTMIN+5 or 39.

    Raises:
        ValueError: if a process cannot handle it.
    """
    name, _, offset = value.upper().partition("+")
    base = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
    number = int(value) if value.isdigit() else None
    if isinstance(base, signal.Signals) and re.fullmatch(r"\d*", offset):
        number = base + int(offset or 0)
    if number not in set(map(int, signal.valid_signals())) - {signal.SIGKILL, signal.SIGSTOP}:
        raise ValueError(f"{variable} is {value!r}, which is not a signal that a process can handle.")
    return int(number)


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return signal.Signals(number).name


def signal_of_process(pid: int, variable: str = VARIABLE) -> int:
    """Return the signal in the environment of a rank's training process; 0 for none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = (entry.partition(b"=") for entry in file.read().split(b"\0"))
    except OSError:
        return 0
    number = {name: value for name, _, value in variables}.get(os.fsencode(variable), b"0")
    return int(number) if number.isdigit() else 0
