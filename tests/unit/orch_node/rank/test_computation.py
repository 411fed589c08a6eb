"""All ranks use orch's kernels, or none does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from orch_node.rank import computation  # noqa: E402

LACKING = "the package orch_kernels is not installed on node1"


def test_ranks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    for problems in (("", "", ""), ("", LACKING, "")):
        store = torch.distributed.HashStore()
        monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda store=store: store)
        layout: Any = SimpleNamespace(world_size=3)
        with ThreadPoolExecutor(3) as ranks:
            results = [
                ranks.submit(computation.decide_together, torch, layout, rank, "key", problem, max)
                for rank, problem in enumerate(problems)
            ]
            assert [result.result(30) for result in results] == [max(problems)] * 3
        layout.world_size = 1
        assert computation.decide_together(torch, layout, 0, "key", LACKING, max) == LACKING
