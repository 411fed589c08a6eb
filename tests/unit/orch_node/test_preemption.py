"""Preemption as a script sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from orch_node.preemption import Agreement
from orch_node.protocol.environment import PREEMPT_SIGNAL
from orch_node.reach import BY_STEP

from orchestrator.files import LIB


def test_script_checks_for_no_preemption_without_a_signal_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install no handler and call no all-reduce, even if the environment of the user names a signal."""
    for value in ("", "0", "USR1"):
        monkeypatch.setenv(PREEMPT_SIGNAL, value)
        agreement = Agreement()
        assert not agreement.is_preempted()
        assert (agreement.handles_signal, agreement.calls, agreement.collectives) == (False, 0, 0)


# A rank and its wrapper. Slurm sends SIGTERM to both.
RANK = """
import os, subprocess, sys, time
from orch_node import preemption
from orch_node.rank.process import SignalForwarder
if sys.argv[1] == "rank":
    preemption.requested()
    print("listening", flush=True)
    while not preemption.requested():
        time.sleep(0.01)
    print("checkpoint", flush=True)
else:
    child = subprocess.Popen([sys.executable, *sys.orig_argv[1:-1], "rank"])
    stop = SignalForwarder(child.pid)
    code = child.wait()
    print("stopped" if stop.stop_requested else "preempted", code, flush=True)
"""


def test_sigterm_requests_a_checkpoint_in_a_slurm_step() -> None:
    for variables, output in (({BY_STEP: "srun"}, "checkpoint\npreempted 0\n"), ({}, "stopped -15\n")):
        number = str(int(signal.SIGUSR2))
        env = {**os.environ, "PYTHONPATH": str(LIB), PREEMPT_SIGNAL: number, **variables}
        command = [sys.executable, "-c", RANK, "wrapper"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as wrapper:
            assert wrapper.stdout.readline() == "listening\n"
            os.killpg(wrapper.pid, signal.SIGTERM)
            assert wrapper.stdout.read() == output
