"""Work objects, groups, forks, stress and models, each in real ranks."""

from __future__ import annotations

import os

import pytest


@pytest.mark.parametrize("launcher", ["mpi", "torchrun"])
def test_work_objects_groups_and_unsupported_calls(run_ranks, launcher):
    run_ranks("work_objects.py", launcher=launcher)


@pytest.mark.parametrize("launcher", ["mpi", "torchrun"])
def test_init_and_destroy_can_be_repeated(run_ranks, launcher):
    run_ranks("again_and_again.py", launcher=launcher, ranks=3)


def test_dataloader_workers_can_be_forked_while_a_group_exists(run_ranks):
    run_ranks("forks.py")


@pytest.mark.parametrize("shared", ["0", "1"], ids=["oneccl", "shared"])
def test_a_forked_child_does_not_crash_hang_or_disturb_its_parent(run_ranks, shared):
    run_ranks("forked_child.py", launcher="bare", timeout=100, env={"ORCH_CCL_SHARED_MEMORY": shared})


@pytest.mark.parametrize("shared", ["0", "1"], ids=["oneccl", "shared"])
def test_a_thousand_mixed_rounds_on_two_groups(run_ranks, shared):
    run_ranks("stress.py", ranks=3, timeout=120, env={"ORCH_CCL_SHARED_MEMORY": shared})


def test_models_train_as_on_gloo(run_ranks, tmp_path):
    expected = "functional collectives are right"
    run_ranks("models.py", str(tmp_path / "checkpoint"), timeout=120, expected=expected)


def test_setup_of_a_group_names_an_absent_rank(launch):
    outcome = launch("absent.py", timeout=40)
    assert outcome.code != 0
    assert "timed out after 5000 ms: no sign of rank 1" in outcome.text


@pytest.mark.parametrize("arguments", [["1"], ["0", "kept"]], ids=["at-first", "before-connecting"])
def test_setup_of_a_group_names_a_rank_that_stops_responding(launch, arguments):
    env = {"CCL_ATL_TRANSPORT": "ofi"}
    outcome = launch("half_way.py", *arguments, launcher="bare", ranks=1, timeout=40, env=env)
    assert outcome.code == 0, outcome.text
    rank = f"rank {arguments[0]} (node7, pid 4711)"
    assert f"timed out after 2000 ms: {rank} had started but stopped responding" in outcome.text


def test_oneccl_waits_in_the_store_for_a_late_rank(run_ranks):
    run_ranks("store_calls.py", launcher="bare", ranks=3)


@pytest.mark.parametrize(
    ("hosts", "env", "nice"),
    [
        pytest.param("together", {}, 10, id="oneccl"),
        pytest.param("together", {"ORCH_CCL_SHARED_MEMORY": "1"}, 10, id="shared"),
        pytest.param(
            "apart",
            {},
            0,
            id="two-hosts",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root creates pid namespaces"),
        ),
    ],
)
def test_the_communication_thread_has_a_low_priority_on_one_host(run_ranks, hosts, env, nice):
    run_ranks("polite.py", hosts, launcher="bare", warm=hosts == "together", env=env, expected=f"nice {nice}\n")
