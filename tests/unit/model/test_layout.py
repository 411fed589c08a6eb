"""Place ranks on the cores of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import PlanError
from orchestrator.model.cluster import lay_out
from orchestrator.planning.resolve import idle_core_decisions
from tests.conftest import make_facts, make_node


def test_idle_cores_of_a_node_are_named() -> None:
    node = make_node(facts=make_facts(cores=7))
    for ppn, idle in ((3, ["1 core of node0"]), (7, [])):
        decisions = idle_core_decisions((node,), lay_out((node,), ppn))
        assert [decision.value for decision in decisions] == idle


def test_impossible_number_of_ranks_is_rejected() -> None:
    for ppn in (0, -1, 9):
        with pytest.raises(PlanError, match="8 physical cores") as exc_info:
            lay_out((make_node(facts=make_facts(numa=2, cores=4)),), ppn)
        assert "1 to 8" in exc_info.value.hint


@given(numa=st.integers(1, 4), cores=st.integers(1, 12), data=st.data())
def test_each_core_has_one_rank_and_each_rank_as_many_cores(numa: int, cores: int, data: st.DataObject) -> None:
    node = make_node(facts=make_facts(numa=numa, cores=cores, threads=2))
    ppn = data.draw(st.integers(1, numa * cores))
    layout = lay_out((node,), ppn)
    cpus = [cpu for placement in layout.rank_places for cpu in placement.cpus]
    assert len(cpus) == len(set(cpus))
    assert set(cpus) <= set(range(numa * cores)), "only the first thread of each core"
    assert {placement.threads for placement in layout.rank_places} == {len(layout.rank_places[0].cpus)}
    assert layout.world_size == ppn


def test_workers_have_separate_cores_and_leave_one_to_their_rank() -> None:
    layout = lay_out((make_node(facts=make_facts(cores=8)),), 2, workers=1)
    assert [placement.cpus for placement in layout.rank_places] == [(0, 1, 2), (4, 5, 6)]
    assert [placement.worker_cpus for placement in layout.rank_places] == [(3,), (7,)]
    assert [placement.threads for placement in layout.rank_places] == [3, 3]
    for workers in (-1, 2, 3):
        with pytest.raises(PlanError, match=f"--ccl-workers {workers}, but a rank on node0 has only 2"):
            lay_out((make_node(facts=make_facts(cores=4)),), 2, workers)
