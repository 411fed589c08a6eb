"""The key by which the pods of a run know each other: made once, by whoever comes first."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from orch_node.pod import rendezvous


def test_all_pods_have_one_key_and_nobody_else_reads_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(rendezvous.key_of, [tmp_path] * 32))
    assert len(keys) == 1
    assert len(keys.pop()) == rendezvous.SIZE
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o077 == 0


def test_another_run_has_another_key(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    first, second = map(rendezvous.key_of, folders)
    assert first != second


def test_a_key_that_never_comes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.1)
    (tmp_path / rendezvous.NAME).touch()
    with pytest.raises(OSError, match="has not written it"):
        rendezvous.key_of(tmp_path)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"0" * rendezvous.SIZE)
    os.symlink(tmp_path / "own", tmp_path / rendezvous.NAME)
    with pytest.raises(OSError, match="symbolic links"):
        rendezvous.key_of(tmp_path)
