"""Check that the compact run record in a cluster is restored without loss, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orch_node.protocol.values import ProtocolError

from orchestrator.model.hostlist import NodeCount
from orchestrator.targets.kubernetes.run_record import with_lists, without_lists
from tests.support.kubernetes_plans import REQUEST, SETTINGS, make_plan


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(1, 4), st.integers(1, 8))
def test_stored_record_is_restored_without_loss(pods: int, ppn: int, size: int) -> None:
    request = replace(REQUEST, nodes=NodeCount(pods), ppn=ppn)
    record = make_plan(request=request, kubernetes=replace(SETTINGS, cpu=str(ppn * size))).run
    stored = json.loads(json.dumps(without_lists(record)))
    assert with_lists(stored) == record


@pytest.mark.parametrize(
    "pods",
    [
        {"nodes": 0},
        {"nodes": 10**12},
        {"ppn": -1},
        {"nodes": -2, "ppn": -2},
        {"threads": 0},
        {"word": "../x"},
        {"word": ""},
        {"word": "a\nb"},
    ],
)
def test_impossible_pod_counts_are_refused(pods: dict[str, Any]) -> None:
    stored = without_lists(make_plan().run)
    with pytest.raises(ProtocolError):
        with_lists({**stored, "pods": {**stored["pods"], **pods}})
