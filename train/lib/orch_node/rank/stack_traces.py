"""Write a rank's stack traces to its log on a signal, unless the script handles that signal."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

from orch_node import stack_signal
from orch_node.agent import processes
from orch_node.events import send
from orch_node.protocol.events import Unanswered


class StackTraces:
    """The handler of the stack signal; a handler of the script has precedence."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.number = stack_signal.signal_of_process(os.getpid())  # 0: no stack traces
        self.is_taken = bool(self.number) and processes.handles_signal(os.getpid(), self.number)
        if self.number and not self.is_taken:
            faulthandler.register(self.number, all_threads=True)

    def check_handler(self) -> None:
        """Report once if the script handles the signal itself."""
        if not self.number:
            return
        if not self.is_taken and signal.getsignal(self.number) in (None, signal.SIG_DFL):
            return
        name = stack_signal.signal_name(self.number)
        text = (
            f"the script handles {name} itself, so there will be no stack traces of this "
            f"rank; {stack_signal.VARIABLE} chooses another signal for them"
        )
        self.number = 0
        print(f"orch: {text}", file=sys.stderr, flush=True)
        send(Unanswered(node=self.node, text=text))
