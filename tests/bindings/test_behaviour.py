"""Work objects, groups, forks, stress, models: each in real ranks."""

from __future__ import annotations

import os

import pytest


@pytest.mark.parametrize("by", ["mpi", "torchrun"])
def test_work_objects_groups_and_refusals(launch, by):
    outcome = launch("work_objects.py", by=by, timeout=60)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2


@pytest.mark.parametrize("by", ["mpi", "torchrun"])
def test_init_and_destroy_again_and_again(launch, by):
    outcome = launch("again_and_again.py", by=by, ranks=3, timeout=60)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 3


def test_forked_workers(launch):
    outcome = launch("forks.py", timeout=60)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2


@pytest.mark.parametrize("shared", ["0", "1"], ids=["oneccl", "shared"])
@pytest.mark.parametrize("act", ["destroy", "destroy-one", "drop", "abort", "query", "communicate"])
def test_a_forked_child_can_neither_crash_nor_hang_nor_disturb(launch, act, shared):
    env = {"ORCH_CCL_SHARED_MEMORY": shared}
    outcome = launch("forked_child.py", act, by="bare", timeout=100, env=env)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_thousand_mixed_rounds_on_two_groups(launch, ranks):
    outcome = launch("stress.py", ranks=ranks, timeout=120)
    assert outcome.code == 0, outcome.text


@pytest.mark.parametrize("ranks", [2, 3])
def test_models_train_as_on_gloo(launch, ranks, tmp_path):
    outcome = launch("models.py", str(tmp_path / "checkpoint"), ranks=ranks, timeout=120)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("functional collectives are right") == ranks


def test_setting_up_a_group_names_who_is_absent(launch):
    outcome = launch("absent.py", timeout=40)
    assert outcome.code != 0
    assert "timed out after 5000 ms: no sign of rank 1" in outcome.text


@pytest.mark.parametrize("silent", [["1"], ["0", "kept"]], ids=["at-first", "before-connecting"])
def test_setting_up_a_group_names_who_stops_half_way(launch, silent):
    env = {"CCL_ATL_TRANSPORT": "ofi"}
    outcome = launch("half_way.py", *silent, by="bare", ranks=1, timeout=40, env=env)
    rank = silent[0]
    assert outcome.code == 0, outcome.text
    assert f"timed out after 2000 ms: rank {rank} (node7, pid 4711) had started but stopped responding" in outcome.text
    assert "see its output for the reason" in outcome.text


def test_oneccl_waits_in_the_store_for_a_late_rank(launch):
    outcome = launch("store_calls.py", by="bare", ranks=3, timeout=60)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 3


@pytest.mark.parametrize("env", [{}, {"ORCH_CCL_SHARED_MEMORY": "1"}], ids=["oneccl", "shared"])
def test_collectives_in_the_background_give_way_to_the_computation(launch, env):
    outcome = launch("polite.py", "together", by="bare", warm=False, env=env)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("nice 10\n") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes pid namespaces")
def test_between_hosts_they_do_not(launch):
    outcome = launch("polite.py", "apart", by="bare", warm=False)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("nice 0\n") == 2
