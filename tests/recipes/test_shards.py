"""Shards of prepared data."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from orchestrator.files import TRAIN


def test_more_shards_than_rows_leave_some_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TRAIN / "recipes/bert_data"))
    import shards

    row = {"input_ids": [1], "first_segment": 1, "is_random_next": False, "positions": [0], "labels": [1]}
    shards.write_part(tmp_path / "part.parquet", [row], random.Random(0))
    shards.write_part(tmp_path / "empty.parquet", [], random.Random(0))
    parts = [tmp_path / "empty.parquet", tmp_path / "part.parquet"]
    for number in range(3):
        shards.write_shard(tmp_path / f"shard-{number}", parts, number, 3, random.Random(0))
    assert sorted(shards.row_count(tmp_path / f"shard-{number}") for number in range(3)) == [0, 0, 1]
