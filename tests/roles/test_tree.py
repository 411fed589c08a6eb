"""The node's half of orch_tree, on real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.roles.modules import load_module

tree = load_module("orch_tree")


def given(root: Path, **changes: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {"manifest": {}, "mirrored": [], "ignored": [], "folders": {}}
    return {"root": str(root), "archive": None, "absent": [], **nothing, **changes}


def test_a_file_that_must_not_be_there_goes(tmp_path: Path) -> None:
    for name in ("secrets.json", "own.json"):
        (tmp_path / name).write_text("{}")
    task = given(tmp_path, absent=["secrets.json", "never.json"])
    found = tree.compare(task)
    assert found["drift"] == [{"what": "secrets.json", "is": "present", "should": "absent"}]
    tree.apply(task, found)
    assert [path.name for path in tmp_path.iterdir()] == ["own.json"]
    assert tree.compare(task)["drift"] == []
