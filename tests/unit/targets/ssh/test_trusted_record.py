"""Check that records from a node are treated as untrusted input."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orch_node.protocol.record import RunNode, parse, render
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import OrchError
from orchestrator.targets.identity import UntrustedRecordError
from orchestrator.targets.ssh.trusted_record import trusted_record
from tests.support.hostile import JSON
from tests.support.recorded import RUN_RECORD as RECORD
from tests.support.sent_records import CLUSTER, make_sent_record


def test_ssh_commands_programs_and_folders_come_from_this_controller() -> None:
    bad = make_sent_record(
        python="/tmp/evil",
        train="/tmp/evil",
        run_dir="/etc",
        node0=RunNode(node="node0", via=("sh", "-c", "/tmp/evil")),
    )
    record = trusted_record(bad, CLUSTER, sender="node0")
    assert record.node0 == record.nodes[0] == RunNode(node="node0", via=CLUSTER.nodes[0].via)
    assert record.nodes[1].via == CLUSTER.nodes[1].via
    assert (record.train, record.run_dir) == ("/opt/orch/train", f"/opt/orch/runs/{bad.run_id}")
    assert record.python == CLUSTER.nodes[0].python


def test_interpreter_of_another_stack_is_trusted() -> None:
    python = "/opt/orch/stacks/intel-2.8/bin/python"
    assert trusted_record(make_sent_record(python=python), CLUSTER, sender="node0").python == python
    up = "/opt/orch/stacks/../../../tmp/bin/python"
    assert trusted_record(make_sent_record(python=up), CLUSTER, sender="node0").python == CLUSTER.nodes[0].python


@pytest.mark.parametrize(
    ("changes", "sender", "message"),
    [
        ({"node0": RunNode(node="ghost"), "nodes": (RunNode(node="ghost"),)}, "ghost", "ghost"),
        ({"nodes": (RunNode(node="node0"), RunNode(node="ghost"))}, "node0", "ghost"),
        ({"nodes": (RunNode(node="node0"), RunNode(node="here"))}, "node0", "here"),
        ({}, "node2", "node2"),
        ({"target": "kubernetes", "location": {"image": "evil"}}, "node0", "kubernetes"),
        ({"output_dir": "/root/.ssh"}, "node0", "/root/.ssh"),
        ({"output_dir": "/opt/orch/runs/x/../../../root/output"}, "node0", "output"),
    ],
)
def test_untrusted_records_are_refused(changes: dict[str, Any], sender: str, message: str) -> None:
    with pytest.raises(UntrustedRecordError, match=message):
        trusted_record(make_sent_record(**changes), CLUSTER, sender=sender)


def test_output_of_an_earlier_run_is_trusted() -> None:
    earlier = "/opt/orch/runs/20250101-120000-qa-ffff/output"
    assert trusted_record(make_sent_record(output_dir=earlier), CLUSTER, sender="node1").output_dir == earlier


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(render(RECORD))), value=JSON)
def test_no_record_changes_hosts_or_folders(name: str, value: Any) -> None:
    try:
        record = trusted_record(parse({**render(make_sent_record()), name: value}), CLUSTER, sender="node0")
    except (ProtocolError, OrchError):
        return
    assert {node.via for node in record.nodes} <= {node.via for node in CLUSTER.nodes if node.via}
    assert record.run_dir == f"/opt/orch/runs/{record.run_id}" == os.path.normpath(record.run_dir)
    assert (record.train, record.target) == ("/opt/orch/train", "ssh")
