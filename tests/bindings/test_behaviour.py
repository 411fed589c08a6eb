"""Work objects, groups, forks, stress and models, each in real ranks."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("launcher", ["mpi", "torchrun"])
def test_work_objects_groups_and_unsupported_calls(run_ranks, launcher):
    run_ranks("work_objects.py", launcher=launcher)


@pytest.mark.parametrize("launcher", ["mpi", "torchrun"])
def test_init_and_destroy_can_be_repeated(run_ranks, launcher):
    run_ranks("again_and_again.py", launcher=launcher, ranks=3)


@pytest.mark.parametrize("shared", ["0", "1"], ids=["oneccl", "shared"])
def test_a_forked_child_does_not_crash_hang_or_disturb_its_parent(run_ranks, shared):
    run_ranks("forked_child.py", launcher="bare", timeout=100, env={"ORCH_CCL_SHARED_MEMORY": shared})


@pytest.mark.parametrize("shared", ["0", "1"], ids=["oneccl", "shared"])
def test_mixed_rounds_on_two_groups(run_ranks, shared):
    run_ranks("stress.py", "400", ranks=3, timeout=120, env={"ORCH_CCL_SHARED_MEMORY": shared})


def test_models_train_as_on_gloo(run_ranks, tmp_path):
    run_ranks("models.py", str(tmp_path / "checkpoint"), timeout=120)


def test_setup_of_a_group_names_a_rank_that_is_absent_or_stops_responding(launch):
    env = {"CCL_ATL_TRANSPORT": "ofi"}
    outcome = launch("half_way.py", launcher="bare", ranks=1, timeout=40, env=env)
    assert outcome.code == 0, outcome.text
    for reason in (
        "no sign of rank 1",
        "rank 1 (node7, pid 4711) had started but stopped responding",
        "rank 0 (node7, pid 4711) had started but stopped responding",
    ):
        assert f"timed out after 2000 ms: {reason}" in outcome.text
