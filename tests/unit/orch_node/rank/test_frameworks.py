"""Which framework the hint for a script names, and with which arguments."""

from __future__ import annotations

from pathlib import Path

from orch_node.rank import frameworks


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
