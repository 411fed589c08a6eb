"""Check which runs the nodes of an inventory report, which of them orch trusts, and what it does on the nodes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol import values
from orch_node.protocol.node_reports import Listing
from orch_node.protocol.record import RunNode, RunRecord, parse, render
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.runs import store
from orchestrator.targets.execute import MAX_PARALLEL_NODES
from orchestrator.targets.interface import UntrustedRecordError, ignore
from orchestrator.targets.ssh.find import InventoryRuns, find_run, merge_listing, trusted_record
from orchestrator.targets.ssh.handle import SshHandle
from orchestrator.targets.ssh.nodes import SshCommands, query_all
from tests.conftest import make_cluster, make_node
from tests.support.hostile import JSON
from tests.support.recorded import RUN_RECORD, make_run

FIRST, SECOND = "20260101-120000-qa-0000", "20260102-120000-qa-0000"
NODE0, NODE1 = RunNode(node="node0"), RunNode(node="node1")
CLUSTER = make_cluster(
    make_node("node0", via=("ssh", "-F", "/own/config", "node0")),
    make_node("node1", via=("ssh", "-F", "/own/config", "node1")),
    make_node("here"),
)


def make_sent_record(**changes: Any) -> RunRecord:
    """Return a record as a node sends it."""
    return replace(RUN_RECORD, **{"node0": NODE0, "nodes": (NODE0, NODE1), **changes})


def make_response(*runs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"schema": 1, "runs": [{"state": "done", "report": {}, **run} for run in runs], **fields}


def merge_responses(**responses: dict[str, Any]) -> InventoryRuns:
    """Return the result of merging the responses of the nodes, in this order."""
    merged = InventoryRuns(cluster=CLUSTER)
    for node, value in responses.items():
        merge_listing(merged, node, values.read(Listing, value, "its response"))
    return merged


def test_run_that_two_nodes_report_alike_is_trusted() -> None:
    record = render(make_sent_record())
    merged = merge_responses(
        node1=make_response({"record": record, "state": "failed"}), node0=make_response({"record": record})
    )
    (run,) = merged.runs.values()
    assert (run.distrust, run.state) == (None, "done")  # Only node0 knows the state.


def test_run_is_not_trusted_if_its_records_name_different_nodes(tmp_path: Path) -> None:
    first, second = make_sent_record(), make_sent_record(nodes=(NODE1,), node0=NODE1)
    responses = {"node0": make_response({"record": render(first)}), "node1": make_response({"record": render(second)})}
    for names in (("node0", "node1"), ("node1", "node0")):
        (run,) = merge_responses(**{name: responses[name] for name in names}).runs.values()
        assert "different nodes" in run.distrust.message
    store.write_record(second, tmp_path / first.run_id)
    with pytest.raises(UntrustedRecordError, match="according to this machine"):
        find_run(tmp_path, first.run_id, "lab", merge_responses(node0=responses["node0"]), ignore)


def test_record_of_a_later_attempt_on_other_nodes_replaces_the_earlier_one(tmp_path: Path) -> None:
    earlier, later = make_sent_record(), make_sent_record(nodes=(NODE1,), node0=NODE1, earlier_nodes=(NODE0,))
    responses = {
        "node0": make_response({"record": render(earlier), "state": "failed"}),
        "node1": make_response({"record": render(later)}),
    }
    for names in (("node0", "node1"), ("node1", "node0")):
        (run,) = (merged := merge_responses(**{name: responses[name] for name in names})).runs.values()
        assert (run.distrust, run.state, [host.node for host in run.record.nodes]) == (None, "done", ["node1"])
        assert [host.via[2] for host in run.record.earlier_nodes] == ["/own/config"]
        base = tmp_path / names[0]
        find_run(base, earlier.run_id, "lab", merge_responses(node0=responses["node0"]), ignore)
        assert find_run(base, earlier.run_id, "lab", merged, ignore)[0] == run.record


def test_untrusted_record_does_not_hide_a_trusted_one() -> None:
    ghost = (RunNode(node="node1"), RunNode(node="ghost"))
    bad = make_response({"record": render(make_sent_record(nodes=ghost, node0=ghost[0]))})
    good = make_response({"record": render(make_sent_record())})
    for responses in ({"node0": good, "node1": bad}, {"node1": bad, "node0": good}):
        (run,) = merge_responses(**responses).runs.values()
        assert run.distrust is None
        assert run.record.nodes[1].node == "node1"


def test_damaged_entries_are_reported_and_hide_no_others() -> None:
    merged = merge_responses(
        node0=make_response(
            {"record": render(make_sent_record())},
            {"record": {}},
            {"record": "\x1b[2J"},
            {"record": render(make_sent_record()) | {"recipe": "\ud800"}},
            damaged=[{"folder": "../x", "problem": "\x1b[2J"}],
        )
    )
    assert len(merged.runs) == 1
    assert len(merged.warnings) == 4
    assert all(line.isprintable() for line in merged.warnings)


def test_output_of_another_form_is_a_problem_of_its_node() -> None:
    for output, problem in (
        ("[]", "its response is [], not an object."),
        ('{"schema": 2}', "its response has schema 2, not 1."),
        ('{"schema": 1, "runs": 7}', "its response: runs is 7, not a list."),
    ):
        response = query_all({RunNode(node="here"): ("echo", output)}, Listing, seconds=10.0)["here"]
        assert isinstance(response, ExecuteError)
        assert response.message == problem


def test_interpreter_of_another_stack_is_trusted() -> None:
    python = "/opt/orch/stacks/intel-2.8/bin/python"
    assert trusted_record(make_sent_record(python=python), CLUSTER, sender="node0").python == python
    up = "/opt/orch/stacks/../../../tmp/bin/python"
    assert trusted_record(make_sent_record(python=up), CLUSTER, sender="node0").python == CLUSTER.nodes[0].python


def test_untrusted_records_are_refused() -> None:
    for changes, sender, message in (
        ({"node0": RunNode(node="ghost"), "nodes": (RunNode(node="ghost"),)}, "ghost", "ghost"),
        ({"nodes": (RunNode(node="node0"), RunNode(node="ghost"))}, "node0", "ghost"),
        ({}, "node2", "node2"),
        ({"target": "kubernetes", "location": {"image": "evil"}}, "node0", "kubernetes"),
        ({"output_dir": "/root/.ssh"}, "node0", "/root/.ssh"),
        ({"output_dir": "/opt/orch/runs/20250101-120000-qa-ffff/output"}, "node0", "not the run's"),
        ({"output_dir": "/opt/orch/runs/x/../../../root/output"}, "node0", "output"),
    ):
        with pytest.raises(UntrustedRecordError, match=message):
            trusted_record(make_sent_record(**changes), CLUSTER, sender=sender)


@given(name=st.sampled_from(sorted(render(RUN_RECORD))), value=JSON)
def test_no_record_changes_hosts_or_folders(name: str, value: Any) -> None:
    try:
        record = trusted_record(parse({**render(make_sent_record()), name: value}), CLUSTER, sender="node0")
    except (ProtocolError, OrchError):
        return
    assert {node.via for node in record.nodes} <= {node.via for node in CLUSTER.nodes if node.via}
    assert record.run_dir == f"/opt/orch/runs/{record.run_id}" == os.path.normpath(record.run_dir)
    assert (record.train, record.target) == ("/opt/orch/train", "ssh")


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
    names = [*(f"node{number}" for number in range(MAX_PARALLEL_NODES)), "last"]
    commands = SshCommands({RunNode(node=name): (*WITH_NAME, name) for name in names})
    ends = commands.run(("sh", "-c", WAIT_FOR_LAST, "sh", str(tmp_path)), lambda node, stream, part: None)
    assert [node for node, end in ends.items() if end != 0] == [], "they waited for the last node"


def test_logs_of_nodes_are_copied_again_when_followed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tuple(RunNode(node=node, via=("ssh", "--", node)) for node in ("node0", "node1"))
    run = make_run(tmp_path, "run", ranks=2, nodes=2, ended=False)
    handle, copied = SshHandle(make_sent_record(nodes=nodes), run), []
    monkeypatch.setattr(handle, "event_batches", lambda: [[]])
    monkeypatch.setattr(handle, "copy_while_followed", lambda host, rank: copied.append(host.node))
    for _ in range(2):
        list(handle.logs(rank=None, follow=True))
    assert sorted(copied) == ["node0", "node0", "node1", "node1"]


def test_reader_of_log_lines_that_ends_does_not_end_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "run", ranks=2, nodes=1, ended=False)
    handle, readers = SshHandle(RUN_RECORD, run), list[SshHandle]()
    monkeypatch.setattr(SshHandle, "log_updates", lambda reader, rank: readers.append(reader) or iter(()))
    for rank in (0, 1):
        list(handle.logs(rank=rank, follow=True))
    for name in ("problems", "threads", "logs_ended"):
        first, second = (vars(reader)[name] for reader in readers)
        assert first is not second, name
