"""A plan in full is a shell script, in which all but the commands are comments."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orch_node.protocol.record import Decision, RunNode

from orchestrator.planning.plan import Plan as AnyPlan
from orchestrator.planning.plan import PutFile

MARK = "touch ran-this"


@settings(max_examples=20)
@given(text=st.text(alphabet=st.sampled_from("\n\r\x0b\x1b\x85\u2028 a;$")))
def test_any_reason_and_any_file_are_printed_as_comments(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Quote any text, because nodes report parts of it, such as package versions."""
    decision = Decision(topic="torch", value="2.13", reason=f"{text}\n{MARK}\n")

    class DescribedPlan(AnyPlan):
        def summary(self) -> list[str]:
            return [decision.describe()]

        @property
        def secrets(self) -> tuple[str, ...]:
            return ()

    plan = object.__new__(DescribedPlan)
    step = PutFile(nodes=(RunNode(node="node0"),), path=f"/{text}\n{MARK}", content=f"{text}\n{MARK}\n")
    object.__setattr__(plan, "steps", (step,))
    assert MARK in plan.describe()
    folder = tmp_path_factory.mktemp("dry")
    subprocess.run(["sh", "-eu"], input=plan.describe(), text=True, check=True, cwd=folder)
    assert list(folder.iterdir()) == []
