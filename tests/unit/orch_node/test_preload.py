"""Libraries to preload in folders whose names the loader would take apart."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from orch_node.rank import checks as node_rank_checks
from orch_node.rank import preload as node_preload

LIBM = ("/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6")
MAPPED = "print(open('/proc/self/maps').read())"


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A copy of the system's libm, in a folder with a space, a dollar and other letters."""
    target = tmp_path / "two words $LIB ünïcödé" / "libm.so"
    target.parent.mkdir()
    path = next(path for path in LIBM if os.path.exists(path))
    shutil.copy(path, target)
    return target


def maps_of(environment: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", MAPPED], env=environment, capture_output=True)
    return done.stdout.decode(errors="replace")


def test_a_library_in_such_a_folder_is_loaded(library: Path) -> None:
    plain = {**os.environ, "LD_PRELOAD": str(library)}
    assert str(library) not in maps_of(plain), "the loader takes it as it is: no link is needed"
    assert str(library) in maps_of(node_preload.reachable(plain))


def test_ranks_share_the_link_in_a_private_folder(library: Path) -> None:
    preload = node_preload
    link = preload.link_to(str(library))
    assert preload.link_to(str(library)) == link
    assert os.readlink(link) == str(library)
    assert not os.stat(os.path.dirname(link)).st_mode & 0o077


def test_what_needs_no_link_stays() -> None:
    reachable = node_preload.reachable
    paths = "/lib/a.so:/lib/b.so:/no such/c.so:libd.so libe.so"
    assert reachable({"LD_PRELOAD": paths}) == {"LD_PRELOAD": paths}
    assert reachable({"A": "1"}) == {"A": "1"}


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "orch"
    folder.mkdir(mode=0o700)
    preload, user = node_preload, os.getuid()
    assert preload.is_private(str(folder), user)
    assert not preload.is_private(str(folder), user + 1)
    folder.chmod(0o755)
    assert not preload.is_private(str(folder), user)
    (tmp_path / "link").symlink_to(folder)
    assert not preload.is_private(str(tmp_path / "link"), user)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.so", "there is no such file"),
        ("two words.so", "takes paths with a space"),
        ("text.so", "invalid ELF header|file too short"),
    ],
)
def test_why_a_library_is_not_loaded(tmp_path: Path, name: str, words: str) -> None:
    if name != "missing.so":
        (tmp_path / name).write_text("this is no library" * 100)
    checks = node_rank_checks
    with pytest.raises(checks.RankError, match=rf"is not loaded: .*{words}.*: `orch setup`"):
        checks.check_preload(str(tmp_path / name), "`orch setup`")
