from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol.record import number_ranges

from orchestrator.errors import PlanError
from orchestrator.model.layout import lay_out, unused_cores
from tests.conftest import make_facts, make_node


def places(numa: int, cores: int, ppn: int | None) -> list[tuple[tuple[int, ...], int]]:
    node = make_node(facts=make_facts(numa=numa, cores=cores, threads=2))
    return [(placement.cpus, placement.threads) for placement in lay_out((node,), ppn).rank_places]


def test_default_is_one_rank_for_each_numa_node() -> None:
    assert places(2, 3, None) == [((0, 1, 2), 3), ((3, 4, 5), 3)]


def test_ranks_share_a_numa_node_evenly() -> None:
    assert places(2, 4, 4) == [((0, 1), 2), ((2, 3), 2), ((4, 5), 2), ((6, 7), 2)]


def test_ranks_that_do_not_divide_leave_cores_idle() -> None:
    node = make_node(facts=make_facts(cores=7))
    layout = lay_out((node,), 3)
    assert [placement.cpus for placement in layout.rank_places] == [(0, 1), (2, 3), (4, 5)]
    assert unused_cores(node, layout.by_node()[node.name]) == 1


def test_fewer_ranks_than_numa_nodes_span_them() -> None:
    assert places(2, 2, 1) == [((0, 1, 2, 3), 4)]


def test_ranks_count_on_over_the_nodes() -> None:
    layout = lay_out((make_node("a"), make_node("b")), 2)
    assert [(p.rank, p.node, p.local_rank) for p in layout.rank_places] == [
        (0, "a", 0),
        (1, "a", 1),
        (2, "b", 0),
        (3, "b", 1),
    ]
    assert layout.nodes == ("a", "b")


@pytest.mark.parametrize("ppn", [0, -1, 9])
def test_too_many_or_too_few_ranks_are_refused(ppn: int) -> None:
    with pytest.raises(PlanError, match="8 physical cores") as caught:
        lay_out((make_node(facts=make_facts(numa=2, cores=4)),), ppn)
    assert "1 to 8" in caught.value.hint


@given(numa=st.integers(1, 4), cores=st.integers(1, 12), data=st.data())
def test_no_core_is_given_twice_and_every_rank_has_the_same_number(numa: int, cores: int, data: st.DataObject) -> None:
    node = make_node(facts=make_facts(numa=numa, cores=cores, threads=2))
    ppn = data.draw(st.integers(1, numa * cores))
    layout = lay_out((node,), ppn)
    used = [cpu for placement in layout.rank_places for cpu in placement.cpus]
    assert len(used) == len(set(used))
    assert set(used) <= set(range(numa * cores)), "only the first thread of each core"
    assert {placement.threads for placement in layout.rank_places} == {len(layout.rank_places[0].cpus)}
    assert layout.world_size == ppn


def test_workers_have_cores_of_their_own() -> None:
    layout = lay_out((make_node(facts=make_facts(cores=8)),), 2, workers=1)
    assert [placement.cpus for placement in layout.rank_places] == [(0, 1, 2), (4, 5, 6)]
    assert [placement.worker_cpus for placement in layout.rank_places] == [(3,), (7,)]
    assert [placement.threads for placement in layout.rank_places] == [3, 3]


@pytest.mark.parametrize("workers", [-1, 2, 3])
def test_a_rank_keeps_a_core_to_compute_on(workers: int) -> None:
    with pytest.raises(PlanError, match=f"--ccl-workers {workers}, but a rank on node0 has only 2"):
        lay_out((make_node(facts=make_facts(cores=4)),), 2, workers)


def test_cpu_list_is_the_kernels() -> None:
    assert number_ranges((0, 1, 2, 8, 10, 11)) == "0-2,8,10-11"
    assert number_ranges(()) == ""
