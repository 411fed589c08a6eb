"""The key by which the pods of a run know each other: made once, by whoever comes first."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

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


def test_damaged_key_is_reported(tmp_path: Path) -> None:
    (tmp_path / rendezvous.NAME).touch()
    with pytest.raises(OSError, match="the key is damaged"):
        rendezvous.key_of(tmp_path)


KILLED_POD = """
import os, signal, sys
from pathlib import Path
from unittest.mock import Mock
from orch_node.pod import rendezvous

def kill(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

rendezvous.secrets.token_hex = kill if sys.argv[2] == "before" else rendezvous.secrets.token_hex
os.fsync = kill
rendezvous.key_of(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_pod_killed_while_it_writes_the_key_does_not_stop_later_pods(tmp_path: Path, moment: str) -> None:
    library = str(Path(rendezvous.__file__).parents[2])
    command = [sys.executable, "-c", KILLED_POD, str(tmp_path), moment]
    killed = subprocess.run(command, env={"PYTHONPATH": library}, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len(rendezvous.key_of(tmp_path)) == rendezvous.SIZE


def test_volume_without_hard_links_has_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(errno.EPERM, "no hard links")))
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(rendezvous.key_of, [tmp_path] * 8))
    assert len(keys) == 1


def test_lock_of_a_killed_pod_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(errno.EPERM, "no hard links")))
    monkeypatch.setattr(rendezvous, "LOCK_SECONDS", 0.2)
    (tmp_path / f"{rendezvous.NAME}.lock").mkdir()
    assert len(rendezvous.key_of(tmp_path)) == rendezvous.SIZE


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"0" * rendezvous.SIZE)
    os.symlink(tmp_path / "own", tmp_path / rendezvous.NAME)
    with pytest.raises(OSError, match="symbolic links"):
        rendezvous.key_of(tmp_path)
