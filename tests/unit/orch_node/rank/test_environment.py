"""Variables that a user sets for the ranks replace those of orch, whatever has written the run's files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.protocol import layout as layouts
from orch_node.protocol.environment import OPENMP, defaults, interface_variables, user_variables
from orch_node.protocol.layout import NodeEntry, RankEntry, RunLayout
from orch_node.rank.environment import rank_environment
from orch_node.rank.main import checked_variables

from tests.support.layouts import make_layout

ORCH_VARIABLES = {**OPENMP, "CCL_WORKER_COUNT": "1"}
VALUES = {"KMP_BLOCKTIME": "200", "GLOO_SOCKET_IFNAME": "lo", "CCL_WORKER_COUNT": "4"}


def make_run(folder: Path, **variables: str) -> tuple[RunLayout, RankEntry]:
    """Write the files of a run that has variables for its node and its rank."""
    node = NodeEntry(name="node0", host="", torch=None, address=None, interface=None, env=interface_variables("eth0"))
    layout = make_layout("node0", nodes=(node,))
    ranks = tuple(replace(rank, env={"CCL_WORKER_COUNT": "2"}) for rank in layout.ranks)
    layout = replace(layout, ranks=ranks)
    (folder / "layout.json").write_text(layouts.render(layout))
    (folder / "env.json").write_text(json.dumps({"MASTER_PORT": "1", **ORCH_VARIABLES, **variables}))
    return layout, layout.ranks[0]


@pytest.mark.parametrize(
    "variables", [pytest.param(user_variables(VALUES), id="request"), pytest.param(defaults(VALUES), id="recipe")]
)
def test_users_variables_replace_those_of_orch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.setenv("ORCH_EVENTS_FD", "3")
    layout, placement = make_run(tmp_path, **variables)
    result = rank_environment(tmp_path, layout, placement)
    assert {name: result[name] for name in VALUES} == VALUES
    assert result["FI_TCP_IFACE"] == "eth0"
    assert result["ORCH_DATA"] == str(tmp_path.parent.parent / "data")
    monkeypatch.setenv("ORCH_DATA", "/datasets")
    assert rank_environment(tmp_path, layout, placement)["ORCH_DATA"] == "/datasets"
    monkeypatch.delenv("ORCH_DATA")
    for name, value in result.items():
        monkeypatch.setenv(name, value)
    planned = json.loads((tmp_path / "env.json").read_text())
    expected = checked_variables({**planned, **layout.nodes[0].env, **placement.env}, planned)
    assert {name: result[name] for name in expected if name != "MASTER_PORT"} | {"MASTER_PORT": "1"} == expected
