"""Check commands on all nodes, the lines of logs that nodes send, and that only folders of a run are deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.protocol.record import RunNode

from orchestrator.errors import ExecuteError
from orchestrator.targets.ssh.commands import SshCommands
from orchestrator.targets.ssh.handle import SshHandle
from orchestrator.targets.ssh.logs import Stream
from orchestrator.targets.ssh.nodes import MAX_PARALLEL_QUERIES
from tests.support.recorded import FAR_NODE, RUN_RECORD

ID = "20260101-120000-qa-0000"


def discard(runs: Path, run_dir: str, run_id: str = ID) -> list[str]:
    """Discard a run of this machine; return the messages."""
    node = RunNode(node="localhost")
    record = replace(RUN_RECORD, run_id=run_id, run_dir=run_dir, node0=node, nodes=(node,))
    messages: list[str] = []
    handle = SshHandle(record, runs / ID)
    handle.notify = messages.append
    handle.discard()
    return messages


def test_only_the_folder_of_the_run_is_deleted(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for folder in (ID, f"other/{ID}", "x"):
        (runs / folder).mkdir(parents=True)
    for run_dir in (f"{runs}", f"{runs}/other", f"{runs}/other/{ID}", f"{runs}/x/../{ID}", ID, "/", ""):
        (message,) = discard(runs, run_dir)
        assert "was not deleted" in message
    (message,) = discard(runs, str(runs), run_id="runs")
    assert "was not deleted" in message, "the id of a run has a date"
    assert sorted(path.name for path in runs.iterdir()) == [ID, "other", "x"]
    assert (runs / "other" / ID).is_dir()
    assert discard(runs, str(runs / ID)) == []
    assert sorted(path.name for path in runs.iterdir()) == ["other", "x"]


WITH_NAME = ("sh", "-c", 'shift; NODE="$0" exec "$@"')
WAIT_FOR_LAST = 'touch "$1/$NODE"; for i in $(seq 100); do [ -e "$1/last" ] && exit 0; sleep 0.1; done; exit 1'


def test_command_runs_on_all_nodes_at_the_same_time(tmp_path: Path) -> None:
    names = [*(f"node{number}" for number in range(MAX_PARALLEL_QUERIES)), "last"]
    commands = SshCommands({RunNode(node=name): (*WITH_NAME, name) for name in names})
    ends = commands.run(("sh", "-c", WAIT_FOR_LAST, "sh", str(tmp_path)), lambda node, stream, part: None)
    assert [node for node, end in ends.items() if end != 0] == [], "they waited for the last node"


def test_line_that_is_no_chunk_of_the_runs_logs_is_refused() -> None:
    for line, message in (
        ('{"rank": 99, "at": 0, "lines": ["a"]}', "unexpected rank 99"),  # rank of another run
        ('{"rank": 0, "at": -1, "lines": []}', "unexpected rank 0"),  # position
        ("[" * 100_000, "nested too deeply"),
        ("5", "not an object"),  # number
    ):
        with pytest.raises(ExecuteError, match=message):
            Stream(record=RUN_RECORD, host=FAR_NODE, options=()).chunk_of(line)
