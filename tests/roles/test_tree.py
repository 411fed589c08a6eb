from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.roles.modules import load_module, run_play
from tests.support.disks import small_file_system

tree = load_module("orch_tree")


def make_options(root: Path, **changes: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"manifest": {}, "mirrored": [], "ignored": [], "folders": {}}
    return {"root": str(root), "absent": [], **defaults, **changes}


def test_absent_files_are_deleted(tmp_path: Path) -> None:
    for name in ("secrets.json", "own.json"):
        (tmp_path / name).write_text("{}")
    options = make_options(tmp_path, absent=["secrets.json", "never.json"])
    differences = tree.compare(options)
    assert differences["drift"] == [{"what": "secrets.json", "is": "present", "should": "absent"}]
    tree.repair(options, differences)
    assert [path.name for path in tmp_path.iterdir()] == ["own.json"]
    assert tree.compare(options)["drift"] == []


def test_full_disk_is_reported_and_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(3 << 20))
    with small_file_system(tmp_path / "disk", "1M"):
        task = {"root": str(tmp_path / "disk"), "trees": [{"src": str(tmp_path / "large"), "dest": "models/large"}]}
        with pytest.raises(AssertionError, match="No space left on device"):
            run_play(tmp_path, {"tasks": [{"orch_tree": task}]})
        assert [path for path in (tmp_path / "disk").rglob("*") if path.is_file()] == []


def test_file_takes_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "root/env.json/inner").mkdir(parents=True)
    task = {"root": str(tmp_path / "root"), "files": [{"dest": "env.json", "content": "{}", "mode": "0600"}]}
    run_play(tmp_path, {"tasks": [{"orch_tree": task}]})
    assert (tmp_path / "root/env.json").read_text() == "{}"


def test_folder_on_a_disk_of_its_own_is_filled(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x")
    (tmp_path / "root").mkdir()
    with small_file_system(tmp_path / "root/models", "1M"):
        task = {"root": str(tmp_path / "root"), "trees": [{"src": str(tmp_path / "large"), "dest": "models/large"}]}
        run_play(tmp_path, {"tasks": [{"orch_tree": task}]})
        assert [path.name for path in (tmp_path / "root/models").iterdir()] == ["large"]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def wide_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("content", [b"", os.urandom(2 << 20)], ids=["small", "large"])
def test_only_the_user_can_read_mirrored_files(tmp_path: Path, wide_umask: None, content: bytes) -> None:
    """Run the module with Ansible on this machine; large files are streamed."""
    data = tmp_path / "data" / "inner"
    data.mkdir(parents=True)
    for name, bits in (("secret", 0o600), ("public", 0o644), ("program", 0o755)):
        (data / name).write_text(name)
        (data / name).chmod(bits)
    (data.parent / "more").write_bytes(content)
    root = tmp_path / "root"
    task = {
        "root": str(root),
        "folders": {"": "0755", "data": "0700"},
        "trees": [{"src": str(tmp_path / "data"), "dest": "data"}],
        "files": [{"dest": "env.json", "content": "{}", "mode": "0600"}],
    }
    for state in ("CHANGED", "SUCCESS"):
        assert f"| {state}" in run_play(tmp_path, {"tasks": [{"orch_tree": task}]})
    assert (root / "data/more").read_bytes() == content
    assert mode(root) == 0o755
    assert mode(root / "env.json") == 0o600
    assert {mode(path) for path in root.rglob("*") if path.is_dir()} == {0o700}
    modes = {path.name: mode(path) for path in (root / "data/inner").iterdir()}
    assert modes == {"secret": 0o600, "public": 0o600, "program": 0o700}


def test_all_users_can_read_a_public_tree(tmp_path: Path) -> None:
    data = tmp_path / "data" / "inner"
    data.mkdir(parents=True)
    for name, bits in (("text", 0o600), ("program", 0o700)):
        (data / name).write_text(name)
        (data / name).chmod(bits)
    root = tmp_path / "root"
    tree_options = {"src": str(tmp_path / "data"), "dest": "data", "public": True}
    play = {"tasks": [{"orch_tree": {"root": str(root), "folders": {"data": "0755"}, "trees": [tree_options]}}]}
    assert "| CHANGED" in run_play(tmp_path, play)
    assert {path.name: mode(path) for path in root.rglob("*")} == {
        "data": 0o755,
        "inner": 0o755,
        "text": 0o644,
        "program": 0o755,
    }
