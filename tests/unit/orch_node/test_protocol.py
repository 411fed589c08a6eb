"""What nodes and controller say to each other: read strictly, written as it was."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from orch_node.protocol import agent, container, environment, events, failures, files, mpirun, outcome
from orch_node.protocol import layout as layouts
from orch_node.protocol.events import Exited, Other, Progress, Raised
from orch_node.protocol.layout import NodeEntry, Placement, RunLayout, Spare
from orch_node.protocol.outcome import Failure, NodeEnd, Outcome, ProcessRecord
from orch_node.protocol.values import ProtocolError

import orchestrator

LAYOUT = RunLayout(
    world_size=2,
    backend="ccl",
    backend_module="oneccl_bindings_for_pytorch",
    timeout_seconds=1800.0,
    setvars="x/env/setvars.sh",
    spares=(Spare("node9", "10.0.0.9"),),
    nodes=(NodeEntry("node0", "host", "2.13.0", "10.0.0.1", "eth1", {"A": "1"}),),
    ranks=tuple(Placement(rank, "node0", rank, 2, (rank,), (), 1, {"B": "it's"}) for rank in (0, 1)),
)


def test_a_layout_is_read_as_it_was_written() -> None:
    text = layouts.render(LAYOUT)
    assert layouts.parse(text) == LAYOUT
    assert text.splitlines()[-3].startswith('  {"rank": 1, "node": "node0"'), "one line each"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("world_size",), "2", "layout.json: world_size is '2', not a whole number"),
        (("world_size",), True, "world_size is True"),
        (("ranks", 1, "cpus"), [0, "1"], r"ranks\[1\]: cpus\[1\] is '1'"),
        (("ranks", 0, "env"), {"A": 1}, r"ranks\[0\]: env.A is 1, not text"),
        (("ranks", 0), None, r"ranks\[0\] is None, not an object"),
        (("nodes",), {}, "nodes is {}, not a list"),
        (("surprise",), 1, "layout.json has the unknown key 'surprise'"),
        (("nodes", 0, "surprise"), 1, r"nodes\[0\] has the unknown key"),
    ],
)
def test_a_wrong_layout_is_told_with_its_key(path: tuple[Any, ...], value: Any, words: str) -> None:
    whole = json.loads(layouts.render(LAYOUT))
    inner = whole
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(ProtocolError, match=words):
        layouts.parse(json.dumps(whole))


def test_what_must_be_there_and_what_is_no_json() -> None:
    whole = json.loads(layouts.render(LAYOUT))
    del whole["backend"]
    with pytest.raises(ProtocolError, match=r"layout.json has no 'backend'\."):
        layouts.parse(json.dumps(whole))
    for text in ("", "{", "[]", "null", '"x"'):
        with pytest.raises(ProtocolError, match=r"layout\.json"):
            layouts.parse(text)


# One line of each kind as orch has written it so far.
LINES = {
    "started": {"node": "node0", "pid": 2, "wrapper": 1, "host": "h"},
    "joined": {"node": "node0", "pid": 2, "cpus": [0, 1], "threads": 2, "backend": "ccl", "torch": "2.13.0"},
    "first_step": {"torch_seed": 2**63},
    "pulse": {"collectives": 3, "world_collectives": 2, "point_to_point": 1, "steps": 2, "log": 100, "idle": False},
    "script_ended": {"world_collectives": 2, "trained": True},
    "progress": {"phase": "train", "step": 3, "steps": 40, "loss": 1.5, "epoch": 2},
    "result": {"train_samples_per_second": 320.0, "after": {"em": 20.5}},
    "exception": {"text": "Traceback"},
    "exit": {
        "node": "node0",
        "code": 1,
        "signal": None,
        "stopped": False,
        "text": "",
        "oom": None,
        "max_rss_bytes": 5,
        "cpu_seconds": 0.5,
    },
    "preempted": {"step": 7},
    "unanswered": {"node": "node0", "text": "why"},
    "warning": {"text": "x"},
    "decision": {"text": "x", "topic": "precision", "value": "fp32"},
    "left_out": {"count": 2, "text": "x"},
    "launched": {"attempt": 1, "ranks": 2, "nodes": ["node0"]},
    "waiting": {"text": "x"},
    "refused": {"text": "x"},
    "failed": {
        "failure": {"rank": 1, "node": "node0", "code": 1, "signal": None, "oom": None, "text": "boom", "time": 1.0}
    },
    "stalled": {"text": "x", "stands": {"0": "a.py:3 f"}},
    "lost": {"text": "x", "nodes": ["node1"]},
    "node": {"node": "node1", "text": "x"},
    "stopping": {"text": "x"},
    "ended": {
        "nodes": {
            "node0": {
                "ended": 2,
                "left": [],
                "segments": ["/dev/shm/x"],
                "segments_left": ["/dev/shm/y"],
                "seconds": 0.1,
            },
            "node1": {"lost": "why"},
        }
    },
    "restarting": {"attempt": 2, "of": 3, "after": "x"},
    "finished": {"state": "done"},
    "outcome": {
        "outcome": {
            "schema": 1,
            "state": "done",
            "first_failure": None,
            "problem": None,
            "launcher_code": 0,
            "attempts": 1,
            "nodes": {},
            "started": 1.0,
            "ended": 2.0,
        }
    },
    "of-the-script": {"anything": [1, {"x": None}]},
}


@pytest.mark.parametrize("kind", LINES)
def test_an_event_is_read_as_it_was_written(kind: str) -> None:
    line = {"event": kind, "rank": 3, "time": 1.5, **LINES[kind], "restart": 1}
    event = events.parse(json.dumps(line))
    assert event is not None
    assert isinstance(event, events.KINDS.get(kind, Other))
    assert json.loads(events.render(event)) == line


def test_every_kind_has_its_line() -> None:
    assert {*events.KINDS} == {*LINES} - {"of-the-script"}


def test_an_event_of_another_version() -> None:
    """What is missing has its default, what is unknown is dropped."""
    event = events.parse('{"event": "exit", "rank": 1, "time": 2, "code": 3, "weather": "fine"}')
    assert event == Exited(rank=1, time=2, code=3)
    assert isinstance(event, Exited)
    assert event.bad


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "joined"}',
        '{"event": 1, "rank": 2}',
        '{"event": "joined", "rank": "2"}',
        '{"event": "exit", "rank": 1, "code": "1"}',
        '{"event": "joined", "rank": 1, "cpus": "all"}',
        '{"event": "x", "rank": null}',
        '{"event": "progress", "rank": 0, "step": "three"}',
    ],
)
def test_what_is_no_event_but_was_meant_as_one(line: str) -> None:
    assert isinstance(events.parse(line), events.UnreadableEvent)


def test_figures_of_a_script_come_through() -> None:
    event = events.parse('{"event": "progress", "rank": 0, "loss": NaN, "lr": 1e-4}')
    assert isinstance(event, Progress)
    assert event.figures == {"lr": 1e-4}


def test_an_outcome_is_read_as_it_was_written() -> None:
    left = ProcessRecord(pid=7, role="rank", name="python3", state="D", rank=1)
    ending = Outcome(
        state="failed",
        first_failure=Failure(rank=1, node="node0", signal="SIGKILL"),
        problem=None,
        launcher_code=1,
        started=1.0,
        ended=2.0,
        attempts=2,
        nodes={"node0": NodeEnd(ended=1, left=(left,)), "node1": NodeEnd(lost="silent")},
    )
    text = outcome.render(ending)
    assert outcome.parse(text) == ending
    assert json.loads(text)["nodes"]["node1"] == {"lost": "silent"}
    assert "lost" not in json.loads(text)["nodes"]["node0"]


def test_an_outcome_of_before_there_were_nodes_in_it() -> None:
    old = {
        "schema": 1,
        "state": "stopped",
        "first_failure": None,
        "problem": None,
        "launcher_code": None,
        "started": 1.0,
        "ended": 2.0,
    }
    assert outcome.parse(json.dumps(old)).attempts == 1


def test_questions_and_answers() -> None:
    claim = agent.Claim(run="r", run_dir="/runs/r", cpus=(0, 1))
    question = agent.TakeClaim(claim)
    assert agent.parse_request(agent.render_request(question)) == question
    answer = agent.ClaimConflicts((claim,))
    kind, found = agent.parse_response(agent.render_response(question, answer))
    assert (kind, found) == (agent.TakeClaim, answer)
    for greeting in (b"Welcome!\n", b'{"answer": "weather"}', b"[]", b'{"answer": ["ping"]}'):
        with pytest.raises(ProtocolError):
            agent.parse_response(greeting)


def test_a_container_is_read_as_it_was_written() -> None:
    spec = container.ContainerSpec("image", "rank", "python", ("libx.so",), {"node0": 2}, ("-v",))
    assert container.parse(container.render(spec)) == spec


# Who is to blame.


def blamed(*told: events.Event) -> int:
    end = failures.first_cause(failures.rank_ends(told).values())
    assert end is not None
    return end.rank


def test_the_first_rank_that_failed_is_to_blame() -> None:
    assert blamed(Raised(rank=2, text="boom"), Raised(rank=1, text="boom")) == 2
    assert blamed(Exited(rank=1, code=3), Raised(rank=2, text="boom")) == 1
    assert blamed(Raised(text="error: the launcher started 3 ranks")) == -1
    assert failures.first_cause(failures.rank_ends([Exited(rank=0)]).values()) is None


@pytest.mark.parametrize(
    "text",
    [
        "Connection closed by peer [1]",
        "Broken pipe",
        "error: rank 1 on node0: full disk",
        "ccl: allreduce #4: rank 1 (vm, pid 7) is gone: its process has ended",
        "ccl: allreduce #4: rank 1 has left the job with exit code 3",
    ],
)
def test_one_that_only_lost_its_peer_is_not(text: str) -> None:
    assert blamed(Raised(rank=0, text=text), Exited(rank=1, signal="SIGKILL")) == 1
    assert blamed(Raised(rank=0, text=text), Raised(rank=1, text="error: rank 1 on node0: x")) == 1


def test_words_in_a_log_count_where_the_backend_aborts() -> None:
    lost = Exited(rank=0, signal="SIGABRT", text="Connection closed by peer")
    assert blamed(lost, Exited(rank=1, code=1)) == 1
    own_exit = Exited(rank=0, code=1, text="Connection closed by peer")
    assert blamed(own_exit, Exited(rank=1, code=1)) == 0


def test_a_rank_without_memory_is_no_consequence() -> None:
    killed = Exited(rank=0, signal="SIGKILL", oom="oom_kill rose")
    assert blamed(Raised(rank=0, text="Broken pipe"), killed, Exited(rank=1, code=1)) == 0


# Rules that both sides have.


def test_intels_openmp_is_told_how_to_pin() -> None:
    assert environment.preload_variables([]) == {}
    assert environment.preload_variables(["/a/libtcmalloc.so"]) == {"LD_PRELOAD": "/a/libtcmalloc.so"}
    found = environment.preload_variables(["/a/libiomp5.so", "/b.so"])
    assert found.keys() == {"LD_PRELOAD", "KMP_AFFINITY", "KMP_BLOCKTIME"}


def test_the_words_of_mpi() -> None:
    words = mpirun.open_mpi("mpirun", "hosts", 4, ("python", "-n"), exported=("PATH",))
    assert words.argv[words.size_at] == "4"
    assert words.argv[words.size_at - 3 : words.size_at] == ("-x", "PATH", "-n")
    assert mpirun.hostfile("openmpi", [("fe80::1", 2)]) == "fe80::1 slots=2\n"
    for flavour in (mpirun.intel, mpirun.mpich):
        found = flavour("mpiexec", "hosts", 8, ("python",))
        assert found.argv[found.size_at :] == ("8", "python")


LIB = Path(orchestrator.__file__).parents[1] / "train/lib/orch_node"
NAMES = {*events.KINDS, *(value for name, value in vars(files).items() if name.isupper())}
NO_NAMES = {"stop", "node", "ranks", "stacks"}  # words of everyday


def names_of_the_protocol(path: Path) -> list[object]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    constants = {node.value for node in nodes if isinstance(node, ast.Constant)}
    keys = [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("layout", "plan", "event")
    ]
    return [*(constants & (NAMES - NO_NAMES)), *keys]


def test_names_of_events_and_files_stand_in_the_protocol_alone() -> None:
    paths = sorted(set(LIB.rglob("*.py")) - set((LIB / "protocol").rglob("*.py")))
    assert {path: names for path in paths if (names := names_of_the_protocol(path))} == {}
