"""The script of a plan writes its files in a shell and changes nothing else."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from orch_node.protocol.record import Decision, Place, RunNode

from orchestrator.planning.plan import HEREDOC_DELIMITER, PutFile, PutLocalFile, describe_places
from orchestrator.planning.plan import Plan as AnyPlan

NODES = (RunNode(node="node0"),)
MARK = "touch ran-this"


def shell(script: str, folder: Path) -> None:
    subprocess.run(["sh", "-eu"], input=script, text=True, check=True, cwd=folder)
    assert not (folder / "ran-this").exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "one line\n",
        f"10.0.0.1\n{HEREDOC_DELIMITER}\n{MARK}\n",
        f"{HEREDOC_DELIMITER}\n{HEREDOC_DELIMITER}_1\n{MARK}\n",
        f"$({MARK}) `{MARK}` \\\n",
    ],
)
@pytest.mark.parametrize("kind", ["here", "node"])
def test_file_is_written_as_it_is(content: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "file"
    local_step = PutLocalFile(path=str(path), content=content)
    step = local_step if kind == "here" else PutFile(nodes=NODES, path=str(path), content=content)
    shell("umask 022\n" + step.describe(), tmp_path)
    assert path.read_text() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(reason=st.text(alphabet=st.sampled_from("\n\r\x0b\x1b\x85\u2028 a;$")))
def test_any_reason_is_printed_as_a_comment(reason: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Quote any reason, because nodes report parts of it, such as package versions."""
    folder = tmp_path_factory.mktemp("dry")
    decision = Decision(topic="torch", value="2.13", reason=f"{reason}\n{MARK}\n")

    class DescribedPlan(AnyPlan):
        def summary(self) -> list[str]:
            return [decision.describe()]

        @property
        def secrets(self) -> tuple[str, ...]:
            return ()

    plan = object.__new__(DescribedPlan)
    object.__setattr__(plan, "steps", ())
    shell(plan.describe(), folder)


def test_places_of_ranks_on_equal_nodes_are_one_line() -> None:
    rank_places = [
        Place(rank=rank, node=f"node{rank // 2}", local_rank=rank % 2, local_world_size=2, cpus=(rank % 2,), threads=1)
        for rank in range(2000)
    ]
    assert describe_places(rank_places) == ["ranks 0-1999: 2 on each of node[0-999]: cores 0 / 1, 1 thread"]
    smaller = replace(rank_places[4], cpus=(0, 1), threads=2)
    assert describe_places([*rank_places[:4], smaller]) == [
        "ranks 0-3: 2 on each of node0, node1: cores 0 / 1, 1 thread",
        "rank 4: node2, cores 0-1, 2 threads",
    ]
    with_workers = [replace(rank_place, worker_cpus=(2,)) for rank_place in rank_places[:4:2]]
    assert describe_places(with_workers) == ["ranks 0,2: 1 on each of node0, node1: cores 0, 1 thread, oneCCL on 2"]
