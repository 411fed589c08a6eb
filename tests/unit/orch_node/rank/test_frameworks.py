"""Which framework the hint for a script names, and with which arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from orch_node.rank import frameworks

LAYOUT: Any = SimpleNamespace(world_size=4, node_names=("node0", "node1"))
PLACEMENT: Any = SimpleNamespace(local_world_size=2)
LIGHTNING = "devices=2, num_nodes=2 and strategy='ddp'"


def test_advice_names_the_only_imported_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    for modules, expected in (
        (["lightning"], LIGHTNING),
        (["lightning_fabric"], LIGHTNING),
        (["accelerate"], "Accelerator(cpu=True)"),
        (["accelerate", "transformers", "transformers.trainer"], "use_cpu=True"),
        (["accelerate", "transformers"], "DistributedDataParallel"),  # model-of-transformers
        (["lightning", "accelerate", "transformers"], LIGHTNING),  # lightning-and-model
        (["lightning", "accelerate"], "DistributedDataParallel"),  # several
        ([], "DistributedDataParallel"),  # none
    ):
        foreign = ("accelerate", "transformers", "lightning", "pytorch_lightning", "lightning_fabric")
        for name in list(sys.modules):
            if name.partition(".")[0] in foreign:
                monkeypatch.delitem(sys.modules, name)
        for name in modules:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        assert expected in frameworks.hint(LAYOUT, PLACEMENT)


def test_revision_of_a_data_set_is_found_by_its_name_and_its_commit(tmp_path: Path) -> None:
    storage = tmp_path / "datasets--me--rows"
    (storage / "snapshots/abc").mkdir(parents=True)
    (storage / "refs").mkdir()
    (storage / "refs/main").write_text("abc")
    assert [frameworks.data_copy(tmp_path, "me/rows", text) for text in ("main", "abc", "v2")] == [
        storage / "snapshots/abc",
        storage / "snapshots/abc",
        None,
    ]
    assert frameworks.data_copy(tmp_path, "me/other", "main") is None
