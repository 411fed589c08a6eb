"""Find the nodes on which commands run, and report how the commands have ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.operations.nodes import check_ends, find_commands
from orchestrator.targets.interface import ignore
from tests.support.recorded import make_run


def test_summary_groups_the_nodes_by_their_exit_codes() -> None:
    check_ends({"node0": 0})
    codes = {"node0": 0, "node1": 2, "node2": 2, "node3": 2, "node5": 2, "node6": 127}
    unreachable = ExecuteError("far does not answer (timed out)", hint="Turn it on.")
    with pytest.raises(ExecuteError) as caught:
        check_ends({**codes, "far": unreachable})
    message = "node[1-3,5]: exit code 2; node6: exit code 127; far: does not answer (timed out)."
    assert (caught.value.message, caught.value.hint) == (message, "Turn it on.")


def test_place_without_nodes_of_orch_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path, target="slurm", location={"name": "orch-x", "job": "12", "login": "head"})
    for name, message, hint in (
        ("nowhere", "no inventory 'nowhere'", "orch init"),  # unknown inventory
        ("slurm", "to jobs", "srun --pty"),
        ("k8s:team", "in pods", "kubectl exec"),  # Kubernetes
        ("last", "a job of Slurm", "on head: srun --jobid=12 "),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            find_commands(name, None, stack="current", runs_dir=tmp_path, notify=ignore)
        assert hint in caught.value.hint
