"""Supervise runs whose launchers are scripts or stand-ins; tests/local and tests/cluster use the real launchers."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from orch_node import machine, program
from orch_node.line_pipes import Pipes
from orch_node.protocol import files
from orch_node.protocol.events import Failed, Joined, Launched, NodeNews, NodesLost
from orch_node.supervisor.supervisor import Supervisor, parse

from tests.support.stand_ins import SimulatedRun
from tests.support.supervised_runs import LAYOUT, NODE_PROGRAM, SLEEP, Runs
from tests.support.waiting import wait_until


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(base=tmp_path)


def test_run_is_done_when_all_ranks_have_finished_with_or_without_an_exit_code(runs: Runs) -> None:
    """Write an endless line before the end of each rank, which is then in the middle of a line, as after a prompt."""
    endless_line = '[os.write(1, b"x" * 60_000) for _ in range(80)]'
    outcome = runs.run(f'{endless_line}\nexit(rank) if rank else send("exit", rank)')
    assert (outcome["state"], outcome["problem"]) == ("done", None)
    assert runs.processes() == []
    assert (runs.base / "run" / "launcher.log").stat().st_size > 9_000_000, "the line was divided"


def test_first_failure_is_named_and_no_process_remains(runs: Runs) -> None:
    began = time.monotonic()
    outcome = runs.run(
        'send("joined", rank)\n'
        'if rank == 1: send("exception", 1, text="boom"); exit(1, 7)\n'
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(60)"
    )
    assert outcome["state"] == "failed"
    failure = outcome["first_failure"]
    assert (failure["rank"], failure["node"], failure["code"], failure["text"]) == (1, "node0", 7, "boom")
    assert time.monotonic() - began < 40, "a rank that ignores SIGTERM gets SIGKILL"
    assert outcome["nodes"]["node0"]["left"] == []
    assert runs.processes() == []


def test_stalled_run_is_ended_and_the_missing_ranks_are_named(runs: Runs) -> None:
    outcome = runs.run(f'if rank == 0: send("joined", 0)\n{SLEEP}', "--stall-timeout", "1")
    assert outcome["state"] == "failed"
    assert outcome["problem"] == "no progress for 1 s: 1 of 2 ranks joined; missing: node0 rank 1"
    assert runs.processes() == []


def test_long_step_that_reports_progress_is_no_stall(runs: Runs) -> None:
    body = 'for step in range(8): send("progress", rank, step=step); time.sleep(0.3)\nexit(rank)'
    assert runs.run(body, "--stall-timeout", "1.5")["state"] == "done"


def test_launcher_that_ends_without_a_rank_is_a_failure(runs: Runs) -> None:
    outcome = runs.run("exit(rank) if rank else os._exit(5)")
    assert outcome["state"] == "failed"
    assert "exit code 5" in outcome["problem"]
    assert "never reported an end: 0" in outcome["problem"]


def test_missing_launcher_and_connections_that_cannot_be_opened_are_failures(runs: Runs) -> None:
    assert runs.supervise("run", "/no/such/mpiexec").wait(20) == 1
    assert "could not be started" in runs.outcome()["problem"]
    (runs.base / "unconnected").mkdir()
    (runs.base / "unconnected" / "nodes").touch()  # in place of the folder
    assert runs.supervise("unconnected", "true").wait(20) == 1
    assert "unconnected/nodes cannot be written (File exists)" in runs.outcome("unconnected")["problem"]


def test_sigterm_preempts_a_script_without_support_which_has_kept_others_from_its_cores(runs: Runs) -> None:
    process = runs.start_ranks()
    outcome = runs.run("exit(rank)", name="second")
    assert (outcome["state"], outcome["problem"]) == ("refused", "node0 is taken: run run has cores 0-1")
    assert runs.events("launched", name="second") == []
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 75
    assert runs.outcome()["state"] == "preempted"
    assert runs.outcome()["problem"].startswith("without a checkpoint: the script does not support")
    assert runs.processes() == []


def test_preempted_ranks_have_not_failed(runs: Runs) -> None:
    outcome = runs.run("send('preempted', rank, step=7); exit(rank, 75)", "--max-restarts=1")
    assert (outcome["state"], outcome["problem"]) == ("preempted", "checkpoint at step 7")
    assert (outcome["first_failure"], outcome["attempts"]) == (None, 1)


def test_rank_that_fails_during_a_preemption_is_a_failure(runs: Runs) -> None:
    outcome = runs.run("exit(rank, 75) if rank else (send('exception', 0, text='error: full'), exit(0, 1))")
    assert outcome["state"] == "failed"
    assert outcome["first_failure"]["text"] == "error: full"


def test_run_that_was_stopped_before_it_had_a_folder_does_not_start(runs: Runs) -> None:
    command = [*NODE_PROGRAM, "cleanup", "end", str(runs.base / "run"), "--patience", "0", "--node0", "--planned"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=20)
    assert runs.supervise("run", "/no/such/mpiexec").wait(20) == 130
    assert runs.outcome()["state"] == "stopped"
    assert runs.events("waiting") == runs.events("launched") == []


def test_clock_that_is_set_does_not_change_the_duration(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.base / "run"
    run.mkdir()
    (run / files.LAYOUT).write_text(LAYOUT)
    (run / files.STOP).touch()
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    supervisor = Supervisor(run, parse([str(run), "--", "true"]))
    monkeypatch.setattr(time, "time", lambda: 5.0)
    supervisor.run()
    assert 0 < 5.0 - runs.outcome()["started"] < 60


def test_stop_waits_for_a_supervisor_that_is_about_to_start(runs: Runs) -> None:
    run = runs.base / "run"
    run.mkdir()
    command = [*NODE_PROGRAM, "cleanup", "end", str(run), "--node0", "--patience", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stop:
        wait_until((run / "stop").exists, "the run is asked to stop")
        assert runs.supervise("run", "/no/such/mpiexec").wait(60) == 130
        output, _ = stop.communicate(timeout=60)
    assert stop.returncode == 0
    assert json.loads(output)["left"] == {"run": []}
    assert runs.processes() == []
    assert runs.outcome()["state"] == "stopped"


def test_no_process_and_no_claim_survives_its_supervisor(runs: Runs) -> None:
    process = runs.start_ranks()
    process.kill()
    process.wait()
    wait_until(lambda: not runs.processes(), "all processes of the run have ended", 10)
    assert runs.run("exit(rank)", name="later")["state"] == "done"


def test_transfer_that_is_cancelled_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    child = tmp_path / "child"
    script = ("sh", "-c", 'sleep 60 >&- 2>&- & echo $! >"$1.new"; mv "$1.new" "$1"; wait', "sh", str(child))
    monkeypatch.setattr(program, "command", lambda *arguments: script)
    agents = SimpleNamespace(node0="node0", lost={}, pipes=Pipes(), watch=lambda: 0.0)
    layout = SimpleNamespace(node_names=["node0", "node1"])
    run: Any = SimpleNamespace(run_dir=tmp_path, attempts=1, attempt_number=1, agents=agents, layout=layout)
    run.is_to_end = child.exists
    assert "were not given" in Supervisor.share_files(run)
    pid = int(child.read_text())
    wait_until(lambda: not machine.is_alive(pid, machine.start_time(pid) or 0), "the child has ended", seconds=10)


def test_failed_attempts_are_restarted_up_to_the_limit(runs: Runs) -> None:
    outcome = runs.run("exit(rank, 1); os._exit(1)", "--max-restarts", "1")
    assert (outcome["state"], outcome["attempts"]) == ("failed", 2)
    assert [event["attempt"] for event in runs.events("restarting")] == [2]


def test_each_restart_is_explained_once(runs: Runs) -> None:
    for name, body, options in (
        ("launcher", "os.kill(os.getppid(), signal.SIGKILL)", ()),
        ("stall", SLEEP, ("--stall-timeout", "1")),
    ):
        runs.run(body, "--max-restarts", "1", *options, name=name)
        (restart,) = runs.events("restarting", name)
        stalls = [event["text"] for event in runs.events("stalled", name)]
        news = [event["text"] for event in runs.events("node", name)]
        assert [*stalls[:1], *news].count(restart["after"]) == 1, name


def test_attempts_that_continue_without_the_state_of_an_optimizer_are_reported(runs: Runs) -> None:
    """Let rank 0 load a checkpoint in the second attempt only; the third one is that of a resumed run."""
    body = 'send("first_step", rank, new_optimizer=os.environ["ORCH_ATTEMPT"] != "2")\nexit(rank, 1); os._exit(1)'

    def warned() -> list[str]:
        return [event["text"] for event in runs.events("node") if "new optimizer" in event["text"]]

    runs.run(body, "--max-restarts", "1")
    assert warned() == []
    runs.run(body, "--first-attempt", "3", "--max-restarts", "1")
    assert [text.partition(" trains")[0] for text in warned()] == ["warning: attempt 3", "warning: attempt 4"]
    assert [(event["attempt"], event["of"]) for event in runs.events("restarting")] == [(2, 1), (4, 3)]


def test_damaged_and_forged_events_are_counted_and_change_no_outcome(runs: Runs) -> None:
    """Ignore events that a script or a torn pipe has damaged, and those that only the supervisor may record."""
    outcome = runs.run(
        'send("joined", rank)\n'
        'send("progress", rank, step="three")\n'
        'send("progress", rank, step=float("nan"))\n'
        'send("exit", 99, code=1)\n'
        'os.write(1, b\'{"event": "exit", "rank": \' + b"[" * 3_000 + b"\\n")\n'
        'os.write(1, b\'{"event": "exit", "rank"\\n\')\n'
        'send("left_out", rank, count=1, text="of a script")\n'
        'send("launched", -1, attempt=7, ranks=1, nodes=[])\n'
        'send("finished", rank, state="failed")\n'
        "exit(rank)"
    )
    assert (outcome["state"], outcome["first_failure"]) == ("done", None)
    unreadable = {event["rank"]: event for event in runs.events("left_out")}
    assert {rank: event["count"] for rank, event in unreadable.items()} == {-1: 8, 0: 4, 1: 4}
    assert "progress: step is 'three', not a number" in unreadable[1]["text"]
    assert "of a script" in unreadable[1]["text"]
    assert "rank 99 does not belong to this run" in unreadable[-1]["text"]
    assert runs.events("progress") == []
    assert [event["attempt"] for event in runs.events("launched")] == [1]
    assert [event["state"] for event in runs.events("finished")] == ["done"]


# A run on many nodes, for whose agents and ranks this process stands in.
NODES = 50
LOST_FILES = [("node30", name) for name in (files.LAYOUT, files.RECORD)]


def test_run_on_many_nodes_restarts_and_stops(tmp_path: Path) -> None:
    run = SimulatedRun(tmp_path, NODES)
    supervisor = run.supervise("--max-restarts=2", open_files=NODES)
    try:
        start_attempt(run, 1)
        assert run.stand_ins.written == given_files(run), "the client sends what grows with the nodes to node0 alone"
        run.fail(20, "ValueError: planned")
        wait_until(lambda: run.events(Failed), "the failure is recorded")
        failures = [event.failure for event in run.events(Failed)]
        assert [(failure.rank, failure.node) for failure in failures] == [(20, "node20")]
        start_attempt(run, 2)
        traces = {path.name for path in (run.folder / files.STACK_TRACES).iterdir()}
        assert traces == {f"rank-{rank}.txt" for rank in range(1, NODES) if rank != 20}  # node0 has a real agent
        run.stand_ins.refused.add("node30")
        start_attempt(run, 3)
        assert run.stand_ins.written == given_files(run) | {key: run.stand_ins.written[key] for key in LOST_FILES}
        assert [event.nodes for event in run.events(NodesLost)] == [("node30",)]
        assert "node50" in run.events(Launched)[-1].nodes
        assert not [event.text for event in run.events(NodeNews) if "did not run" in event.text]
        (run.folder / files.STOP).touch()
        supervisor.terminate()
        assert supervisor.wait(60) == 130
    finally:
        supervisor.kill()
        run.stand_ins.stop()
    handed = [json.loads(line) for line in (run.folder / files.HANDED_LOGS).read_text().splitlines()]
    assert {line["node"] for line in handed} == {f"node{index}" for index in range(1, NODES + 1)} - {"node30"}
    outcome = json.loads((run.folder / files.OUTCOME).read_text())
    assert (outcome["state"], outcome["attempts"], len(outcome["nodes"])) == ("stopped", 3, NODES + 1)


def given_files(run: SimulatedRun) -> dict[tuple[str, str], int]:
    """Return the hash of each file that the other nodes and the spare node should have, by node and name."""
    contents = {name: (run.folder / name).read_text() for name in (files.LAYOUT, files.RECORD)}
    return {(f"node{index}", name): hash(text) for index in range(1, NODES + 1) for name, text in contents.items()}


def start_attempt(run: SimulatedRun, attempt: int) -> None:
    """Start the ranks of an attempt, and wait until they have joined."""
    wait_until(lambda: run.stand_ins.attempts == attempt, f"attempt {attempt} has started")
    run.begin_attempt()
    wait_until(lambda: len(run.events(Joined)) == attempt * NODES, f"the ranks of attempt {attempt} have joined")
