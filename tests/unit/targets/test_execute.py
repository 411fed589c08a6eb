"""Steps that are done on several nodes at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from orch_node.protocol.record import RunNode

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.project import Imports
from orchestrator.planning.plan import CheckImports, PutFile, RunProgram, SendFile
from orchestrator.targets.connections.local import Local
from orchestrator.targets.execute import MAX_PARALLEL_NODES, execute, on_all

NODES = (RunNode(node="n0"),)
IMPORTS = Imports(importers={}, source="stack current")


def test_failed_step_names_the_node_or_the_file() -> None:
    for step, message in (
        (RunProgram(nodes=NODES, command=("false",)), "n0: exit code 1."),
        (CheckImports(nodes=NODES, command=("sh", "-c", "exit 2"), imports=IMPORTS), "the imports: exit code 2."),
        (SendFile(nodes=NODES, source="/no/such", path="/tmp/x"), "/no/such: No such file or directory."),
        (PutFile(path="/dev/null/x", content=""), "/dev/null: "),
    ):
        with pytest.raises(ExecuteError) as exc_info:
            execute([step], {"n0": Local()})
        assert message in exc_info.value.message


def test_program_with_unreadable_input_is_not_called_missing() -> None:
    with pytest.raises(FileNotFoundError):
        Local().feed(("true",), Path("/no/such"))
    with pytest.raises(ExecuteError, match="/no/such cannot be started"):
        Local().feed(("/no/such",), Path(__file__))


@pytest.mark.parametrize("reachable", [[], ["n31"]], ids=["none", "one"])
def test_nodes_are_left_out_if_none_of_the_first_ones_can_be_reached(reachable: list[str]) -> None:
    """Save the minutes that a thousand nodes behind a closed VPN would take, 32 at a time."""
    nodes = tuple(RunNode(node=f"n{index}") for index in range(1000))
    tried = []

    def connect(node: RunNode) -> None:
        tried.append(node.node)
        if not reachable and node not in nodes[:MAX_PARALLEL_NODES]:
            time.sleep(0.5)  # a busy machine may see the failures of the first nodes late
        if node.node not in reachable:
            raise ConnectionLost(f"{node.node} does not answer.")

    with pytest.raises(ExecuteError) as exc_info:
        on_all(nodes, {}, connect)
    if reachable:
        assert len(tried) == 1000
    else:
        assert len(tried) < 200
        assert exc_info.value.message == "n[0-31] does not answer; the other 968 nodes were left out."
