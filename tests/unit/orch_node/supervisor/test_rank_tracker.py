"""What the supervisor concludes from the events of ranks, or from a start without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node.protocol.events import Event, Exited, Heartbeat, Joined, Raised, ScriptEnded, Started
from orch_node.supervisor.launcher import NO_CHILDREN_SECONDS, LauncherLog, startup_problem
from orch_node.supervisor.rank_tracker import RankTracker

from tests.support.layouts import make_layout
from tests.support.processes import running_python
from tests.unit.orch_node.protocol.test_failures import NCCL_TIMEOUT


def make_tracker(*nodes: str, events: list[Event] | None = None) -> RankTracker:
    """Return a tracker that has received events at second 2, of ranks on these nodes."""
    tracker = RankTracker(make_layout(*nodes), 0.0)
    add_events(tracker, *(events or []))
    return tracker


def add_events(tracker: RankTracker, *events: Event) -> None:
    for event in events:
        tracker.add_event(event, 2.0)


def test_rank_that_is_behind_is_named_before_and_after_a_timeout_of_nccl() -> None:
    """Check that the ranks that NCCL has ended count as waiting, and that the rank behind is named."""
    tracker = make_tracker("node0", "node0", "node1")
    for rank, count in enumerate((101, 101, 98)):
        add_events(tracker, Joined(rank=rank), Heartbeat(rank=rank, collectives=count))
    stall = "2 of 3 ranks wait in collective 101; behind: node1 rank 2 (at 98)"
    assert tracker.describe_missing_ranks() == stall
    assert tracker.seconds_since_progress(10.0) == 8.0
    assert tracker.collective_timeout() == ""
    add_events(tracker, *(Exited(rank=rank, signal="SIGABRT", text=NCCL_TIMEOUT) for rank in (0, 1)))
    assert tracker.collective_timeout() == f"NCCL's timeout of 600 s is over: {stall}"
    assert tracker.behind() == [2]
    add_events(tracker, Raised(rank=2, text="ValueError: the reason"))
    assert tracker.collective_timeout() == ""


def test_reason_why_a_rank_is_behind_is_named() -> None:
    joined = [Joined(rank=0), Joined(rank=1)]
    for event, stopped, text in (
        (Heartbeat(rank=0, collectives=1), set(), "; node1 rank 1 never reached the first collective"),
        # A stopped rank may have made collectives since its last report.
        (
            Heartbeat(rank=0, collectives=18),
            {1},
            "node1 rank 1 is stopped by a signal (SIGSTOP, SIGTSTP) or a debugger",
        ),
    ):
        tracker = make_tracker("node0", "node1", events=[*joined, event])
        tracker.stopped = stopped
        description = tracker.describe_missing_ranks()
        assert description.endswith(text)
        assert ("never reached" in description) is ("never reached" in text)


def test_log_that_grows_by_stack_traces_is_no_progress() -> None:
    tracker = make_tracker("node0", events=[Heartbeat(rank=0, collectives=3, steps=1, log=10)])
    tracker.traces_requested = 60.0
    tracker.add_event(Heartbeat(rank=0, collectives=3, steps=1, log=900), 62.0)
    assert tracker.seconds_since_progress(62.0) == 60.0
    tracker.add_event(Heartbeat(rank=0, collectives=4, steps=1, log=900), 63.0)
    assert tracker.seconds_since_progress(63.0) == 0.0


def test_idle_ranks_make_no_progress() -> None:
    tracker = make_tracker("node0", "node0")
    for rank in (0, 1):
        add_events(tracker, Joined(rank=rank), Heartbeat(rank=rank, collectives=3))
    tracker.add_event(Heartbeat(rank=0, collectives=3, idle=True), 30.0)
    assert not tracker.all_idle()
    tracker.add_event(Heartbeat(rank=1, collectives=3, idle=True), 31.0)
    assert tracker.all_idle()
    assert tracker.describe_missing_ranks() == "node0 ranks 0-1 are all at collective 3"
    assert tracker.seconds_since_progress(32.0) == 30.0
    tracker.add_event(Heartbeat(rank=1, collectives=4), 33.0)
    assert not tracker.all_idle()


def test_rank_that_all_ranks_name_in_their_errors_has_failed() -> None:
    text = "error: rank 0 on node0: cannot write checkpoint-4: No space left on device."
    tracker = make_tracker("node0", "node1", events=[Raised(rank=rank, text=text, time=1.0) for rank in (1, 0)])
    assert tracker.first_cause.rank == 0
    assert tracker.undecided(), "its exit code is not known yet"
    assert make_tracker("node0", events=[Exited(rank=0, signal="SIGTERM", stopped=True)]).first_cause is None


def test_rank_in_a_collective_of_a_subgroup_waits_only_for_an_ended_script_of_it() -> None:
    beat = Heartbeat(rank=0, collectives=7, world_collectives=4, groups={"a": 3})
    events = [beat, ScriptEnded(rank=1, world_collectives=4, groups={"b": 1})]
    assert make_tracker("node0", "node1", events=events).positions_beyond_ended_scripts([0]) == {}
    events = [beat, Heartbeat(rank=1, collectives=8, world_collectives=4, groups={"b": 4})]
    tracker = make_tracker("node0", "node0", "node1", events=events)
    add_events(tracker, ScriptEnded(rank=2, world_collectives=4, groups={"a": 2}))
    waiting = tracker.positions_beyond_ended_scripts(tracker.waiting())
    assert waiting == {0: ("a", 3, 7)}
    assert tracker.describe_mismatched_collectives(waiting) == (
        "node1 rank 2 ended the script after 2 collectives of the group of ranks 0,2, but node0 rank 0 waits in "
        "collective 3, which needs all ranks of the group"
    )


def test_rank_that_makes_progress_in_another_group_does_not_wait() -> None:
    tracker = make_tracker("node0", "node1", events=[ScriptEnded(rank=1, groups={"a": 1})])
    for second in range(5, 65):
        add_events(tracker, Heartbeat(rank=0, collectives=second, groups={"a": 2, "b": second - 2}))
        assert tracker.mismatched_collectives(float(second)) == ""


def test_run_ends_when_wrappers_wait_and_the_other_ranks_are_in_their_exit_handlers() -> None:
    tracker = make_tracker("node0", "node0", events=[Exited(rank=1, finished=False, waits=True)])
    assert not tracker.waits_only_for_wrappers(99.0)
    add_events(tracker, Heartbeat(rank=0, leaving=True))
    assert not tracker.waits_only_for_wrappers(3.0)
    assert tracker.waits_only_for_wrappers(99.0)
    add_events(tracker, Exited(rank=0))
    assert tracker.waits_only_for_wrappers(3.0)
    events = [Exited(rank=0, finished=False), Exited(rank=1)]  # without a wrapper that waits
    assert not make_tracker("node0", "node0", events=events).waits_only_for_wrappers(99.0)
    ended = make_tracker("node0", events=[Exited(rank=0)])  # whose launcher waits for a process of the script
    assert (ended.waits_only_for_wrappers(3.0), ended.waits_only_for_wrappers(99.0)) == (False, True)


def test_mismatched_collectives_end_only_a_run_without_progress() -> None:
    """Let the root of a broadcast continue without the rank that receives."""
    tracker = make_tracker("node0", "node1", events=[ScriptEnded(rank=1, world_collectives=4)])
    for second in range(5, 65):
        add_events(tracker, Heartbeat(rank=0, world_collectives=second))
        assert tracker.mismatched_collectives(float(second)) == ""
    assert tracker.mismatched_collectives(75.0).startswith("node1 rank 1 ended the script after 4 collectives")
    add_events(tracker, ScriptEnded(rank=0, world_collectives=64))
    assert tracker.mismatched_collectives(99.0) == ""


SRUN_ERROR = "srun: error: n2: task 1: Exited with exit code 1\n"
WAIT = "import sys; print(flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}])"


@pytest.fixture(params=[WAIT, PARENT], ids=["childless", "parent"])
def launcher(request: pytest.FixtureRequest) -> Iterator[tuple[int, bool]]:
    """Yield the id of a waiting process, and whether it has a child."""
    with running_python(request.param) as process:  # The innermost process runs.
        yield process.pid, request.param == PARENT


def test_startup_fails_when_the_launcher_has_no_process(launcher: tuple[int, bool], tmp_path: Path) -> None:
    pid, has_child = launcher
    layout = make_layout("node0", "node1")
    tracker, log = RankTracker(layout, 0.0), LauncherLog(tmp_path / "launcher.log", layout)
    (tmp_path / "launcher.log").write_text(SRUN_ERROR)
    for seconds in (20.0, NO_CHILDREN_SECONDS - 1):
        assert startup_problem(pid, "mpiexec.hydra", log, tracker, seconds) == "", (
            "it may be about to start one, after its name servers"
        )
    problem = startup_problem(pid, "mpiexec.hydra", log, tracker, 1 + NO_CHILDREN_SECONDS)
    assert bool(problem) is not has_child
    assert has_child or problem.endswith(f"the launcher reports: {SRUN_ERROR.strip()}")
    assert startup_problem(0, "python", log, tracker, 1000.0) == "", "torchrun needs no process"
    tracker.add_event(Started(rank=0, node="node0", pid=1, wrapper=1, host="node0"), 0.0)
    problem = startup_problem(pid, "mpiexec.hydra", log, tracker, 1 + NO_CHILDREN_SECONDS)
    assert problem == "", "its proxies may have ended"
