"""How the supervisor follows ranks, and replaces lost nodes."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest
from orch_node import line_pipes
from orch_node.protocol.events import Event, Exited, Heartbeat, Joined, Raised, ScriptEnded, UnreadableEvent
from orch_node.protocol.layout import Placement, RunLayout, Spare
from orch_node.protocol.outcome import Outcome
from orch_node.supervisor import agents, event_log, layouts, rank_tracker, recovery
from orch_node.supervisor.uneven_end import UnevenEnd


def layout(*nodes: str, spares: tuple[Spare, ...] = ()) -> RunLayout:
    places = tuple(
        Placement(rank=i, node=node, local_rank=0, local_world_size=1, cpus=(i,), worker_cpus=(), threads=1, env={})
        for i, node in enumerate(nodes)
    )
    return RunLayout(
        world_size=len(places),
        backend="gloo",
        backend_module="",
        timeout_seconds=1800.0,
        nodes=(),
        ranks=places,
        spares=spares,
    )


def test_a_spare_stands_in_for_a_lost_node() -> None:
    spares = (Spare("node8", "10.0.0.8"), Spare("node9", "10.0.0.9"))
    before = layout("node0", "node1", "node2", spares=spares)
    hosts = "10.0.0.0:1\n10.0.0.1:1\n10.0.0.2:1\n"
    stand_ins = {"node1": "node8"}
    assert layouts.replace_hosts(hosts, before, stand_ins) == ("10.0.0.0:1\n10.0.0.8:1\n10.0.0.2:1\n")
    of_open_mpi = "10.0.0.0 slots=1\nfe80::1 slots=12\n10.0.0.2 slots=1\n"
    assert layouts.replace_hosts(of_open_mpi, before, stand_ins) == (
        "10.0.0.0 slots=1\n10.0.0.8 slots=12\n10.0.0.2 slots=1\n"
    )
    after = before.replace_nodes(stand_ins)
    assert after.node_names == ["node0", "node8", "node2"]
    assert list(after.spare_hosts) == ["node9"]
    assert layouts.claim_of("/run", before, "node9").cpus == (0,)


@pytest.mark.parametrize(("moment", "off"), [(9.0, -1.0), (10.5, 0.0), (13.0, 2.0)])
def test_a_clock_is_off_by_what_lies_outside_the_time_of_asking(moment: float, off: float) -> None:
    assert agents.clock_offset(moment, 10.0, 11.0) == off


def tracker(*nodes: str) -> rank_tracker.RankTracker:
    return rank_tracker.RankTracker(layout(*nodes), 0.0)


def told(tracked: rank_tracker.RankTracker, *events: Event) -> rank_tracker.RankTracker:
    for event in events:
        tracked.add_event(event, 2.0)
    return tracked


def test_who_has_not_joined_is_named_by_node() -> None:
    ranks = told(tracker("node0", "node0", "node1", "node1", "node2"), Joined(rank=0), Joined(rank=1))
    assert ranks.describe_missing_ranks() == "2 of 5 ranks joined; missing: node1 ranks 2-3, node2 rank 4"


def test_who_is_behind_is_named_with_its_collective() -> None:
    ranks = tracker("node0", "node0", "node1")
    for rank, count in enumerate((17, 17, 12)):
        told(ranks, Joined(rank=rank), Heartbeat(rank=rank, collectives=count))
    words = "2 of 3 ranks wait in collective 17; behind: node1 rank 2 (at 12)"
    assert ranks.describe_missing_ranks() == words
    assert ranks.seconds_since_progress(10.0) == 8.0


def test_ranks_that_never_reached_a_collective_are_named() -> None:
    ranks = tracker("node0", "node1")
    told(ranks, Joined(rank=0), Joined(rank=1), Heartbeat(rank=0, collectives=1))
    assert ranks.behind() == [1]
    assert ranks.describe_missing_ranks().endswith("; node1 rank 1 never reached the first collective")


def test_a_log_that_grows_by_stack_traces_is_no_progress() -> None:
    ranks = told(tracker("node0"), Heartbeat(rank=0, collectives=3, steps=1, log=10))
    ranks.traces_requested = 60.0
    ranks.add_event(Heartbeat(rank=0, collectives=3, steps=1, log=900), 62.0)
    assert ranks.seconds_since_progress(62.0) == 60.0
    ranks.add_event(Heartbeat(rank=0, collectives=4, steps=1, log=900), 63.0)
    assert ranks.seconds_since_progress(63.0) == 0.0


def test_idle_ranks_make_no_progress() -> None:
    ranks = tracker("node0", "node0")
    for rank in (0, 1):
        told(ranks, Joined(rank=rank), Heartbeat(rank=rank, collectives=3))
    ranks.add_event(Heartbeat(rank=0, collectives=3, idle=True), 30.0)
    assert not ranks.all_idle()
    ranks.add_event(Heartbeat(rank=1, collectives=3, idle=True), 31.0)
    assert ranks.all_idle()
    assert ranks.seconds_since_progress(32.0) == 30.0
    ranks.add_event(Heartbeat(rank=1, collectives=4), 33.0)
    assert not ranks.all_idle()


def test_ranks_that_have_ended_are_not_behind() -> None:
    ranks = told(tracker("node0", "node1"), Joined(rank=0), Joined(rank=1), Exited(rank=0))
    assert ranks.describe_missing_ranks() == "1 of 2 ranks have ended; no progress of node1 rank 1"


def test_the_rank_that_all_others_name_is_the_culprit() -> None:
    text = "error: rank 0 on node0: cannot write checkpoint-4: No space left on device."
    ranks = told(tracker("node0", "node1"), *(Raised(rank=r, text=text, time=1.0) for r in (1, 0)))
    failure = ranks.first_failure()
    assert failure is not None
    assert failure.rank == 0
    assert ranks.undecided(), "its exit code is not known yet"


def test_a_rank_that_was_stopped_has_not_failed() -> None:
    ranks = told(tracker("node0"), Exited(rank=0, signal="SIGTERM", stopped=True))
    assert ranks.first_failure() is None


def test_a_layout_without_its_lost_node() -> None:
    whole = layout("node0", "node1", "node1", "node2")
    left = whole.remove_nodes({"node1"})
    assert [(place.rank, place.node) for place in left.ranks] == [(0, "node0"), (1, "node2")]
    assert (left.world_size, left.planned_size) == (2, 4)
    assert left.remove_nodes({"node2"}).planned_size == 4
    assert whole.planned_size == 4
    hosts = layouts.remove_hosts("a:1\nb:2\nc:1\n", whole, {"node1"})
    assert hosts == "a:1\nc:1\n"
    argv = ["mpiexec.hydra", "-f", "hosts", "-n", "4", "-ppn", "1", "python", "x", "-n", "9"]
    fewer = layouts.resize_command(argv, left, 4, None)
    assert fewer == [*argv[:4], "2", *argv[5:]], "the script's own -n stays"
    assert layouts.resize_command(argv, left, None, 6)[6] == "2"
    assert layouts.resize_command(argv, left, None, None) == argv, "it reads the layout itself"


def test_a_run_recovers_with_spares_first_and_then_without_nodes(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a slots=1\nb slots=1\nc slots=1\n")
    whole = layout("node0", "node1", "node2", spares=(Spare("node8", "s"),))
    argv = ["accelerate", "--num_processes", "3", "--num_machines", "3", "rank.py", "3"]
    told: list[str] = []

    def recover(lost: set[str], gone: set[str], **options: Any) -> Any:
        asked = argparse.Namespace(elastic=True, keeps_batch=True, min_nodes=2, size_at=2, nodes_at=4)
        vars(asked).update(options)
        now = recovery.Recovery(whole, argv)
        return recovery.recover(tmp_path, now, lost=lost, unreachable=lost | gone, options=asked, notify=told.append)

    assert recover({"node1", "node2"}, {"node8"}) is None
    assert told == ["no restart: the run needs 2 nodes"]
    assert recover({"node1"}, {"node8"}, elastic=False) is None
    assert told[1].startswith("no restart: fewer ranks would train with another global batch")
    recovered = recover({"node1", "node2"}, set())
    assert told[2:] == [
        "node8 replaces node1",
        "continues without node2: 2 of 3 ranks; the recipe keeps its global batch, its order of data and its schedule",
    ]
    assert [one.node for one in recovered.layout.ranks] == ["node0", "node8"]
    numbers = ["--num_processes", "2", "--num_machines", "2"]
    assert recovered.argv == ["accelerate", *numbers, *argv[5:]]
    assert (tmp_path / "hostfile").read_text() == "a slots=1\ns slots=1\n"
    (tmp_path / "hostfile").unlink()
    assert recover({"node1"}, {"node8"}).layout.world_size == 2, "torchrun has no hostfile"
    assert recover({"node1"}, {"node8"}, keeps_batch=False).layout.world_size == 2
    assert "unless the script uses ORCH_PLANNED_WORLD_SIZE=3" in told[-1]


def test_a_line_without_an_end_is_handed_on_in_pieces() -> None:
    out, into = os.pipe()
    pipes, got = line_pipes.Pipes(), []
    pipes.add(out, got.append, max_bytes=10)
    os.write(into, b"short\n" + b"x" * 25)
    pipes.pump(1.0)
    os.write(into, b"y\nlast\n")
    pipes.pump(1.0)
    assert got == [b"short\n", b"x" * 25 + b"\n", b"y\n", b"last\n"]
    os.close(into)
    pipes.pump(1.0)
    assert not pipes.open(out)
    os.close(out)


def test_of_a_flood_of_damage_the_beginning_is_kept(tmp_path: Path) -> None:
    events = event_log.EventLog(tmp_path, ["node0"])
    for _ in range(event_log.MAX_UNREADABLE_LINES + 5):
        events.record_unreadable(UnreadableEvent(rank=0, text="x"), b"y" * 9000)
    events.end(Outcome(state="done"))
    events.events.close()
    events.launcher_output.close()
    kept = (tmp_path / "launcher.log").read_bytes().splitlines()
    assert (len(kept), max(map(len, kept))) == (1000, 4096 + len(event_log.UNREADABLE_PREFIX))
    left, _ = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert left["count"] == 1005


def test_ranks_that_wait_for_an_ended_script_are_named_with_it() -> None:
    ranks = told(
        tracker("node0", "node0", "node1"),
        *(Joined(rank=rank) for rank in range(3)),
        Heartbeat(rank=0, collectives=5, world_collectives=5),
        Heartbeat(rank=1, collectives=9, world_collectives=4),
        ScriptEnded(rank=2, world_collectives=4),
    )
    assert ranks.waiting_in_vain() == {0: 5}
    assert ranks.describe_uneven_end({0: 5}) == (
        "node1 rank 2 ended the script after 4 collectives, but node0 rank 0 waits in collective "
        "5, which needs all ranks"
    )


def test_a_rank_in_a_collective_of_its_own_group_waits_for_nobody_that_ended() -> None:
    ranks = told(
        tracker("node0", "node1"),
        Heartbeat(rank=0, collectives=7, world_collectives=4),
        ScriptEnded(rank=1, world_collectives=4),
    )
    assert ranks.waiting_in_vain() == {}


def test_ranks_that_get_on_after_a_script_ended_do_not_end_the_run() -> None:
    """Let the root of a broadcast go on without the rank that receives."""
    ranks, end = tracker("node0", "node1"), UnevenEnd()
    told(ranks, ScriptEnded(rank=1, world_collectives=4))
    assert end.news(ranks, 0.0) == ""
    for second in range(5, 65):
        told(ranks, Heartbeat(rank=0, world_collectives=second))
        assert bool(end.news(ranks, float(second))) == (second == 5)
        assert end.problem(float(second)) == ""
    assert end.news(ranks, 75.0) == ""
    assert end.problem(75.0).startswith("node1 rank 1 ended the script after 4 collectives")
    told(ranks, ScriptEnded(rank=0, world_collectives=64))
    assert end.news(ranks, 76.0) == ""
    assert end.problem(99.0) == ""
