"""The environment of a rank in its container."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node.protocol.container import ContainerSpec, EnvFileError, RankRequest
from orch_node.protocol.environment import planned_variables
from orch_node.rank import container, container_entry
from orch_node.standalone import facts

from tests.support.layouts import make_layout

PLACEMENT = make_layout("node0").ranks[0]


def test_file_of_variables_replaces_what_orch_sets_and_the_request_replaces_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facts, "libraries", lambda prefix: {"libiomp5.so": "/lib/libiomp5.so"})
    environment = {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_PORT": "1", **planned_variables({}, {"KMP_BLOCKTIME": "3"})}
    file_variables = {"KMP_AFFINITY": "none", "KMP_BLOCKTIME": "2", "GLOO_SOCKET_IFNAME": "lo"}
    order = RankRequest(PLACEMENT, environment, (), "", "", preload=("libiomp5.so",), given=file_variables)
    result = container_entry.rank_environment(order, events=3)
    expected = {"KMP_AFFINITY": "none", "KMP_BLOCKTIME": "3", "GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": "1"}
    assert {name: result[name] for name in expected} == expected


def test_file_of_variables_cannot_set_what_orch_sets_for_each_rank(tmp_path: Path) -> None:
    file = tmp_path / "variables.env"
    file.write_text("RANK=7\n")
    spec = ContainerSpec("orch", "rank", "python3", preload=(), processes={}, options=(), env_file=str(file))
    with pytest.raises(EnvFileError, match="sets RANK: orch or the launcher sets"):
        container.start(tmp_path, spec, RankRequest(PLACEMENT, {}, (), "", ""))
