"""A rank's stack traces, which it writes into its log at a signal that the script leaves alone."""

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
    """A handler of the script's stays and, once that has been told, is never called by orch."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.number = stack_signal.of_process(os.getpid())  # 0: none are wanted
        self.taken = bool(self.number) and processes.handles(os.getpid(), self.number)
        if self.number and not self.taken:
            faulthandler.register(self.number, all_threads=True)

    def look(self) -> None:
        """Whether the signal is still ours; if not, say so, once."""
        if not self.number:
            return
        if self.taken or signal.getsignal(self.number) not in (None, signal.SIG_DFL):
            self.give_up()

    def give_up(self) -> None:
        name = stack_signal.name_of(self.number)
        self.number = 0
        text = (
            f"the script handles {name} itself, so there will be no stack traces of this rank; "
            f"{stack_signal.VARIABLE} names another signal for them"
        )
        print(f"orch: {text}", file=sys.stderr, flush=True)
        send(Unanswered(node=self.node, text=text))
