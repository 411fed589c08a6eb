"""Variables of the loader and of malloc in a rank's environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from orch_node.rank import checks, libc_environment
from orch_node.rank.libc_environment import KEEP_HEAP, PRELOAD, TUNABLES, with_kept_heap, with_loadable_preload

LIBM = ("/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6")
PRINT_MAPS = "print(open('/proc/self/maps').read())"
COUNT_PAGE_FAULTS = """
import resource
def step():
    return [bytearray(50 << 20) for _ in range(2)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""


def run_python(code: str, environment: dict[str, str]) -> str:
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    return process.stdout.decode(errors="replace")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a copy of libm in a folder with a space, a dollar sign and non-ASCII letters."""
    target = tmp_path / "two words $LIB ünïcödé" / "libm.so"
    target.parent.mkdir()
    shutil.copy(next(path for path in LIBM if os.path.exists(path)), target)
    return target


def test_malloc_keeps_memory_between_steps() -> None:
    bare = {"PATH": os.environ["PATH"]}
    faults, faults_by_default = (
        int(run_python(COUNT_PAGE_FAULTS, environment)) for environment in (with_kept_heap(bare), bare)
    )
    assert faults * 10 < faults_by_default


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({TUNABLES: ""}, id="empty-tunables"),
        pytest.param({TUNABLES: "glibc.malloc.check=3"}, id="tunables"),
        pytest.param({"MALLOC_ARENA_MAX": "2"}, id="malloc-variable"),
        pytest.param({PRELOAD: "/venv/lib/libiomp5.so:/usr/lib/libtcmalloc_minimal.so.4"}, id="tcmalloc"),
        pytest.param({PRELOAD: "/usr/lib/libjemalloc.so.2"}, id="jemalloc"),
    ],
)
def test_malloc_settings_of_the_user_take_precedence(environment: dict[str, str]) -> None:
    assert with_kept_heap(environment) == environment


def test_malloc_is_set_with_other_preloaded_libraries() -> None:
    preloaded = {PRELOAD: "/malloc/libiomp5.so"}
    assert with_kept_heap(preloaded) == {**preloaded, TUNABLES: KEEP_HEAP}


def test_preload_loads_a_library_whose_path_the_loader_would_split(library: Path) -> None:
    environment = {**os.environ, PRELOAD: str(library)}
    assert str(library) not in run_python(PRINT_MAPS, environment), "the loader needs no link"
    assert str(library) in run_python(PRINT_MAPS, with_loadable_preload(environment))


def test_preload_link_is_shared_and_private(library: Path) -> None:
    link = libc_environment.link_to(str(library))
    assert libc_environment.link_to(str(library)) == link
    assert os.readlink(link) == str(library)
    assert not os.stat(os.path.dirname(link)).st_mode & 0o077


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({PRELOAD: "/lib/a.so:/lib/b.so:/no such/c.so:libd.so libe.so"}, id="safe-and-missing-paths"),
        pytest.param({"A": "1"}, id="no-preload"),
    ],
)
def test_preload_stays_without_need_for_links(environment: dict[str, str]) -> None:
    assert with_loadable_preload(environment) == environment


def test_private_folder_must_belong_to_the_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "orch"
    folder.mkdir(mode=0o700)
    user = os.getuid()
    assert libc_environment.is_private(str(folder), user)
    assert not libc_environment.is_private(str(folder), user + 1)
    folder.chmod(0o755)
    assert not libc_environment.is_private(str(folder), user)
    (tmp_path / "link").symlink_to(folder)
    assert not libc_environment.is_private(str(tmp_path / "link"), user)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("missing.so", "there is no such file", id="missing"),
        pytest.param("two words.so", "splits paths at spaces", id="unsafe-path"),
        pytest.param("text.so", "invalid ELF header|file too short", id="no-library"),
    ],
)
def test_check_preload_explains_why_a_library_is_not_loaded(tmp_path: Path, name: str, reason: str) -> None:
    if name != "missing.so":
        (tmp_path / name).write_text("not a library" * 100)
    with pytest.raises(checks.RankError, match=rf"is not loaded: .*{reason}.*: `orch setup`"):
        checks.check_preload(str(tmp_path / name), "`orch setup`")
