"""The supervisor with a launcher of our own; tests/local and tests/cluster have the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from orch_node.protocol.layout import Placement, RunLayout, render

from orchestrator.paths import TRAIN

NODE = (sys.executable, str(TRAIN / "node.py"))

# Stands for mpiexec.hydra and two ranks: processes that tell what ranks tell.
LAUNCHER = """
import json, os, signal, sys, time

def tell(event, rank, **fields):
    os.write(1, (json.dumps({"event": event, "rank": rank, "time": 0, **fields}) + "\\n").encode())

def exit(rank, code=0, signal=None):
    tell("exit", rank, code=code, signal=signal, stopped=False, oom=None)

def rank_main(rank):
    tell("started", rank)
    %s

children = []
for rank in (0, 1):
    child = os.fork()
    if child == 0:
        rank_main(rank)
        os._exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
sys.exit(max(codes))
"""
LAYOUT = render(
    RunLayout(
        world_size=2,
        backend="gloo",
        backend_module="",
        timeout_seconds=1800.0,
        nodes=(),
        ranks=tuple(
            Placement(
                rank=rank,
                node="node0",
                local_rank=rank,
                local_world_size=2,
                cpus=(rank,),
                worker_cpus=(),
                threads=1,
                env={},
            )
            for rank in (0, 1)
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A folder for runs whose supervisors share one folder of claims."""

    base: Path

    def start(self, body: str, *options: str, name: str = "run") -> subprocess.Popen[bytes]:
        run = self.base / name
        run.mkdir()
        (run / "layout.json").write_text(LAYOUT)
        lines = body.strip().splitlines()
        (run / "fake.py").write_text(LAUNCHER % "\n    ".join(lines))
        return self.supervise(run, sys.executable, str(run / "fake.py"), options=options)

    @staticmethod
    def supervise(run: Path, *launcher: str, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        command = [*NODE, "supervise", str(run), *options, "--"]
        return subprocess.Popen([*command, *launcher])

    def run(self, body: str, *options: str, name: str = "run") -> dict[str, Any]:
        self.start(body, *options, name=name).wait(30)
        return self.outcome(name)

    def outcome(self, name: str = "run") -> dict[str, Any]:
        return dict(json.loads((self.base / name / "outcome.json").read_text()))

    def events(self, kind: str, name: str = "run") -> list[dict[str, Any]]:
        path = self.base / name / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def await_event(self, kind: str, count: int = 1, name: str = "run") -> None:
        deadline = time.monotonic() + 20
        while len(self.events(kind, name)) < count:
            assert time.monotonic() < deadline, f"no event {kind}"
            time.sleep(0.02)

    def living(self, name: str = "run") -> list[str]:
        """Processes whose environment or arguments have the run's folder, as /proc shows them."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                try:
                    text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                except OSError:
                    continue
                if os.fsencode(self.base / name) in text:
                    found.append(folder.name)
        return found


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(base=tmp_path)


SLEEP = "time.sleep(60)"


def test_all_ranks_finish(ground: Ground) -> None:
    outcome = ground.run("exit(rank)")
    assert (outcome["state"], outcome["problem"]) == ("done", None)
    assert ground.living() == []


def test_the_first_failure_is_named_and_nothing_is_left(ground: Ground) -> None:
    began = time.monotonic()
    outcome = ground.run(
        'tell("joined", rank)\n'
        'if rank == 1: tell("exception", 1, text="boom"); exit(1, 7)\n'
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(60)"
    )
    assert outcome["state"] == "failed"
    failure = outcome["first_failure"]
    assert (failure["rank"], failure["node"], failure["code"]) == (1, "node0", 7)
    assert failure["text"] == "boom"
    assert time.monotonic() - began < 40, "a rank that ignores SIGTERM gets SIGKILL"
    assert outcome["nodes"]["node0"]["left"] == []
    assert ground.living() == []


def test_a_rank_that_only_lost_its_peer_is_not_the_culprit(ground: Ground) -> None:
    outcome = ground.run(
        'if rank == 0: tell("exception", 0, text="Connection closed by peer [1]"); exit(0, 1)\n'
        "time.sleep(0.1)\n"
        'if rank == 1: exit(1, 0, "SIGKILL")\n'
        "time.sleep(60)"
    )
    failure = outcome["first_failure"]
    assert (failure["rank"], failure["signal"]) == (1, "SIGKILL")


def test_a_run_that_stands_still_is_ended_and_who_is_missing_is_said(ground: Ground) -> None:
    body = f'if rank == 0: tell("joined", 0)\n{SLEEP}'
    outcome = ground.run(body, "--stall-timeout", "1")
    assert outcome["state"] == "failed"
    words = "no progress for 1 s: 1 of 2 ranks joined; missing: node0 rank 1"
    assert outcome["problem"] == words
    assert ground.living() == []


def test_a_long_step_that_reports_is_no_stall(ground: Ground) -> None:
    body = 'for step in range(8): tell("progress", rank, step=step); time.sleep(0.3)\nexit(rank)'
    assert ground.run(body, "--stall-timeout", "1.5")["state"] == "done"


def test_a_launcher_that_ends_without_its_ranks(ground: Ground) -> None:
    outcome = ground.run("exit(rank) if rank else os._exit(5)")
    assert outcome["state"] == "failed"
    assert "exit code 5" in outcome["problem"]
    assert "never reported an end: 0" in outcome["problem"]


def test_a_launcher_that_starts_no_rank_is_told_with_its_last_words(ground: Ground) -> None:
    run = ground.base / "run"
    run.mkdir()
    (run / "layout.json").write_text(LAYOUT)
    program = "import sys; sys.exit('srun: error: Invalid MPI type')"
    ground.supervise(run, sys.executable, "-c", program).wait(30)
    problem = ground.outcome()["problem"]
    assert problem.endswith("the launcher's last line: srun: error: Invalid MPI type")


def test_stopping(ground: Ground) -> None:
    process = ground.start(SLEEP)
    ground.await_event("started", 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert ground.outcome()["state"] == "stopped"
    assert ground.living() == []


def test_ranks_that_take_no_signal_make_room_at_once(ground: Ground) -> None:
    process = ground.start(SLEEP)
    ground.await_event("started", 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 75
    assert ground.outcome()["state"] == "preempted"
    assert ground.outcome()["problem"].startswith("without a checkpoint: the script does not support")
    assert ground.living() == []


def test_ranks_that_end_to_make_room_have_not_failed(ground: Ground) -> None:
    outcome = ground.run("tell('preempted', rank, step=7); exit(rank, 75)", "--max-restarts=1")
    assert (outcome["state"], outcome["problem"]) == ("preempted", "checkpoint at step 7")
    assert outcome["first_failure"] is None
    assert outcome["attempts"] == 1


def test_a_rank_that_fails_while_it_makes_room_is_a_failure(ground: Ground) -> None:
    outcome = ground.run("exit(rank, 75) if rank else (tell('exception', 0, text='error: full'), exit(0, 1))")
    assert outcome["state"] == "failed"
    assert outcome["first_failure"]["text"] == "error: full"


@pytest.mark.parametrize("planned", [False, True], ids=["its files are here", "nothing is here"])
def test_a_run_that_was_asked_to_stop_before_it_began(ground: Ground, planned: bool) -> None:
    run = ground.base / "run"
    command = [
        sys.executable,
        str(TRAIN / "node.py"),
        "cleanup",
        "end",
        str(run),
        "--patience",
        "0",
        *(["--node0", "--planned"] if planned else []),
    ]
    if not planned:
        run.mkdir()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=20)
    run.joinpath("layout.json").write_text(LAYOUT)
    assert ground.supervise(run, "/no/such/mpiexec").wait(20) == 130
    assert ground.outcome()["state"] == "stopped"
    assert ground.events("waiting") == ground.events("launched") == []


def test_a_stop_waits_for_a_supervisor_that_is_about_to_start(ground: Ground) -> None:
    run = ground.base / "run"
    run.mkdir()
    (run / "layout.json").write_text(LAYOUT)
    sweep = [sys.executable, str(TRAIN / "node.py"), "cleanup", "end", str(run), "--node0", "--patience", "60"]
    with subprocess.Popen(sweep, stdout=subprocess.PIPE) as stop:
        while not (run / "stop").exists():
            time.sleep(0.01)
        assert ground.supervise(run, "/no/such/mpiexec").wait(60) == 130
        answer, _ = stop.communicate(timeout=60)
    assert stop.returncode == 0
    assert json.loads(answer)["left"] == []
    assert ground.living() == []
    assert ground.outcome()["state"] == "stopped"


def test_without_its_supervisor_nothing_lives_on(ground: Ground) -> None:
    process = ground.start(SLEEP)
    ground.await_event("started", 2)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while ground.living() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ground.living() == []


def test_it_starts_again_as_often_as_it_may(ground: Ground) -> None:
    outcome = ground.run("exit(rank, 1); os._exit(1)", "--max-restarts", "2")
    assert (outcome["state"], outcome["attempts"]) == ("failed", 3)
    assert [event["attempt"] for event in ground.events("restarting")] == [2, 3]
    good = 'exit(rank, int(int(os.environ["ORCH_ATTEMPT"]) < 2))'
    assert ground.run(good, "--max-restarts", "2", name="two")["state"] == "done"


def test_cores_of_a_living_run_are_refused_and_it_is_named(ground: Ground) -> None:
    first = ground.start(SLEEP, name="first")
    ground.await_event("started", 2, name="first")
    refused = ground.run("exit(rank)", name="second")
    assert refused["state"] == "refused"
    assert refused["problem"] == "node0 is taken: run first has cores 0-1"
    assert ground.events("launched", name="second") == []
    waiting = ground.start("exit(rank)", "--queue", name="third")
    ground.await_event("waiting", name="third")
    first.send_signal(signal.SIGTERM)
    assert waiting.wait(20) == 0
    first.wait()


def test_of_two_that_start_together_one_gets_the_cores(ground: Ground) -> None:
    both = [ground.start("time.sleep(1); exit(rank)", name=name) for name in ("a", "b")]
    for process in both:
        process.wait(20)
    assert sorted(ground.outcome(name)["state"] for name in ("a", "b")) == ["done", "refused"]


def test_a_dead_run_holds_no_cores(ground: Ground) -> None:
    first = ground.start(SLEEP, name="first")
    ground.await_event("started", 2, name="first")
    first.kill()
    first.wait()
    assert ground.run("exit(rank)", "--queue", name="second")["state"] == "done"


def test_a_launcher_that_is_not_there(ground: Ground) -> None:
    run = ground.base / "run"
    run.mkdir()
    (run / "layout.json").write_text(LAYOUT)
    command = [sys.executable, str(TRAIN / "node.py"), "supervise", str(run), "--", "/no/such/mpiexec"]
    assert subprocess.run(command, timeout=20).returncode == 1
    assert "could not be started" in ground.outcome()["problem"]


def test_damaged_events_end_no_run_and_are_told_once(ground: Ground) -> None:
    """An event that a script or a torn pipe has spoilt is none of the run's course."""
    outcome = ground.run(
        'tell("joined", rank)\n'
        'tell("progress", rank, step="three")\n'
        'tell("progress", rank, step=float("nan"))\n'
        'tell("exit", 99, code=1)\n'
        'os.write(1, b\'{"event": "exit", "rank": \' + b"[" * 3_000 + b"\\n")\n'
        'os.write(1, b\'{"event": "exit", "rank"\\n\')\n'
        'tell("left_out", rank, count=1, text="of a script")\n'
        "exit(rank)"
    )
    assert (outcome["state"], outcome["first_failure"]) == ("done", None)
    found = {event["rank"]: event for event in ground.events("left_out")}
    assert {rank: one["count"] for rank, one in found.items()} == {-1: 6, 0: 3, 1: 3}
    assert "progress: step is 'three', not a number" in found[1]["text"]
    assert "of a script" in found[1]["text"]
    assert "rank 99 does not belong to this run" in found[-1]["text"]
    assert ground.events("progress") == []
    words = (ground.base / "run" / "launcher.log").read_text().splitlines()
    assert len([line for line in words if line.startswith("orch: not read: ")]) == 12
    assert not [line for line in words if line.startswith("{")]


def test_an_exit_without_a_code_is_a_good_end(ground: Ground) -> None:
    assert ground.run('tell("exit", rank)')["state"] == "done"


def test_a_launcher_that_writes_without_end_fills_no_memory(ground: Ground) -> None:
    outcome = ground.run('[os.write(1, b"x" * 60_000) for _ in range(80)]\nexit(rank)')
    assert outcome["state"] == "failed", "the end of rank 0 or 1 is in the middle of a line"
    assert (ground.base / "run" / "launcher.log").stat().st_size > 9_000_000


def test_what_is_told_of_the_run_as_a_whole_no_rank_tells(ground: Ground) -> None:
    """Written past report(): the run's course is told by its supervisor alone."""
    outcome = ground.run(
        'tell("launched", -1, attempt=7, ranks=1, nodes=[])\n'
        'tell("finished", rank, state="failed")\n'
        'tell("outcome", -1, outcome={"state": "failed"})\n'
        "exit(rank)"
    )
    assert outcome["state"] == "done"
    assert [event["attempt"] for event in ground.events("launched")] == [1]
    assert [event["state"] for event in ground.events("finished")] == ["done"]
    assert ground.events("outcome") == []
    assert sum(event["count"] for event in ground.events("left_out")) == 6


def test_a_rank_that_is_none_of_the_run_may_say_why_it_cannot_go_on(ground: Ground) -> None:
    """torchrun has started more ranks than were planned, say."""
    outcome = ground.run('tell("exception", 7, text="error: 8 ranks"); sys.exit(1)')
    assert outcome["first_failure"]["text"] == "error: 8 ranks"
