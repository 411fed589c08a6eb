from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.modules import run_play
from tests.support.disks import small_file_system


def test_disk_in_the_folder_is_filled_until_it_is_full_and_has_no_part_of_a_file(tmp_path: Path) -> None:
    for name, content in (("small", b"x"), ("large", os.urandom(3 << 20))):
        (tmp_path / name).write_bytes(content)
    root = tmp_path / "root"
    root.mkdir()
    trees = [[{"src": str(tmp_path / name), "dest": f"models/{name}"}] for name in ("small", "large")]
    with small_file_system(root / "models", "1M"):
        with pytest.raises(AssertionError, match="No space left on device"):
            run_play(tmp_path, {"tasks": [{"orch_tree": {"root": str(root), "trees": tree}} for tree in trees]})
        assert [path.name for path in root.rglob("*") if path.is_file()] == ["small"]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def wide_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_only_the_user_can_read_mirrored_files_but_all_users_a_public_tree(tmp_path: Path, wide_umask: None) -> None:
    """Run the module with Ansible on this machine; large files are streamed, and a file takes the place of a folder."""
    data = tmp_path / "data" / "inner"
    data.mkdir(parents=True)
    for name, bits in (("secret", 0o600), ("public", 0o644), ("program", 0o755)):
        (data / name).write_text(name)
        (data / name).chmod(bits)
    large = os.urandom(2 << 20)
    (data.parent / "large").write_bytes(large)
    (data.parent / "empty").touch()
    root, public = tmp_path / "root", tmp_path / "public"
    (root / "env.json/inner").mkdir(parents=True)
    (root / "secrets.json").touch()
    source = {"src": str(tmp_path / "data"), "dest": "data"}
    private_task = {
        "root": str(root),
        "absent": ["secrets.json"],
        "folders": {"": "0755", "data": "0700"},
        "trees": [source],
        "files": [{"dest": "env.json", "content": "{}", "mode": "0600"}],
    }
    public_task = {"root": str(public), "folders": {"data": "0755"}, "trees": [{**source, "public": True}]}
    for state in ("CHANGED", "SUCCESS"):
        output = run_play(tmp_path, {"tasks": [{"orch_tree": private_task}, {"orch_tree": public_task}]})
        assert output.count(f"| {state}") == 2
    assert (root / "data/large").read_bytes() == large
    assert (root / "data/empty").read_bytes() == b""
    assert (root / "env.json").read_text() == "{}"
    assert not (root / "secrets.json").exists()
    assert mode(root) == 0o755
    assert mode(root / "env.json") == 0o600
    assert {mode(path) for path in root.rglob("*") if path.is_dir()} == {0o700}
    names = ("secret", "public", "program")
    assert [mode(root / "data/inner" / name) for name in names] == [0o600, 0o600, 0o700]
    assert [mode(public / "data/inner" / name) for name in names] == [0o644, 0o644, 0o755]
    assert {mode(path) for path in (public / "data", public / "data/inner")} == {0o755}
