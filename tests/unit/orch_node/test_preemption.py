"""What a script asks of orch_node.preemption where orch has told it no signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from orch_node import stack_signal
from orch_node.preemption import Agreement
from orch_node.protocol.agent import PreemptedRanks
from orch_node.reach import BY_STEP
from orch_node.supervisor.preemption import PreemptionMonitor

from orchestrator.paths import TRAIN


@pytest.mark.parametrize("words", ["", "0", "USR1"])
def test_without_a_number_from_orch_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Neither a handler nor an all-reduce, also where the user's own environment names a signal."""
    monkeypatch.setenv(stack_signal.PREEMPT, words)
    agreement = Agreement()
    assert not agreement.is_preempted()
    assert (agreement.listens, agreement.calls, agreement.collectives) == (False, 0, 0)


# A rank below its wrapper: both get SIGTERM, as from Slurm.
RANK = """
import os, subprocess, sys, time
sys.path.append(sys.argv[1])
from orch_node import preemption
from orch_node.rank.process import SignalForwarder
if sys.argv[2] == "rank":
    preemption.requested()
    print("listening", flush=True)
    while not preemption.requested():
        time.sleep(0.01)
    print("checkpoint", flush=True)
else:
    child = subprocess.Popen([sys.executable, *sys.orig_argv[1:-1], "rank"])
    stop = SignalForwarder(child.pid)
    code = child.wait()
    print("asked" if stop.stop_requested else "preempted", code, flush=True)
"""


@pytest.mark.parametrize(
    ("variables", "output"),
    [({BY_STEP: "srun"}, "checkpoint\npreempted 0\n"), ({}, "asked -15\n")],
    ids=["slurm", "elsewhere"],
)
def test_sigterm_of_slurm_is_a_request_for_a_checkpoint(variables: dict[str, str], output: str) -> None:
    environment = {**os.environ, stack_signal.PREEMPT: str(int(signal.SIGUSR2)), **variables}
    command = [sys.executable, "-c", RANK, str(TRAIN / "lib"), "wrapper"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as wrapper:
        assert wrapper.stdout is not None
        assert wrapper.stdout.readline() == "listening\n"
        os.killpg(wrapper.pid, signal.SIGTERM)
        assert wrapper.stdout.read() == output


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        pytest.param({}, "no agent of its nodes responds", id="agents-have-died"),
        pytest.param(
            {"n1": PreemptedRanks(ranks=())}, "the script does not support preemption", id="script-does-not-listen"
        ),
    ],
)
def test_a_preemption_without_a_checkpoint_names_the_reason(
    tmp_path: Path, answers: dict[str, PreemptedRanks], reason: str
) -> None:
    agents = SimpleNamespace(request=lambda question, wanted, seconds: answers)
    monitor = PreemptionMonitor(tmp_path, agents, lambda: True, lambda event: None)  # type: ignore[arg-type]
    tracker = SimpleNamespace(any_preempted=lambda: False, checkpoints={})
    ending = monitor.poll(tracker)  # type: ignore[arg-type]
    assert ending is not None
    assert reason in (ending.problem or "")


def test_time_for_a_checkpoint_does_not_pass_while_the_job_is_suspended(tmp_path: Path) -> None:
    answers = {"n1": PreemptedRanks(ranks=(0,))}
    agents = SimpleNamespace(request=lambda question, wanted, seconds: answers)
    monitor = PreemptionMonitor(tmp_path, agents, lambda: True, lambda event: None)  # type: ignore[arg-type]
    tracker = SimpleNamespace(any_preempted=lambda: False, checkpoints={})
    assert monitor.poll(tracker) is None  # type: ignore[arg-type]
    assert monitor.requested_at is not None
    monitor.requested_at -= 600.0  # as if the process had been stopped for ten minutes
    monitor.add_standstill(600.0)
    assert monitor.poll(tracker) is None  # type: ignore[arg-type]
