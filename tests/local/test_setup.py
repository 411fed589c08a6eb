"""Check what `make setup` installs with the real pip, and that it finds PyTorch's CPU index."""

from __future__ import annotations

import os
import socket
import subprocess
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.operations import setup
from orchestrator.stacks.stack import Index
from tests.support.http_server import serve_folder
from tests.support.wheels import index_variables, make_wheel

VERSION = "99.13.0"  # no index of pip's configuration has this version


def make_index(url: str) -> Index:
    return Index(name="an index", option="", url=url, serves=("torch",), only_there=False)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """Serve a simple index (PEP 503) that has torch as a CPU build."""
    wheel = f"torch-{VERSION}%2Bcpu-py3-none-any.whl"
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    with serve_folder(tmp_path) as url:
        yield make_index(url)


def test_packages_of_the_user_are_added_and_others_stay(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "orch_test_greeter", "1.0", requires=["packaging"], module="VERSION = '1.0'")
    make_wheel(tmp_path / "index", "packaging", "99.0")
    program, environment = make_environment(tmp_path)
    code = (
        "from orchestrator import load; from orchestrator.operations.setup import install_packages\n"
        "from orchestrator.model.packages import Requirements\n"
        "requirements = Requirements(source='needs.txt', lines=('orch-test-greeter',))\n"
        "install_packages(requirements, load.stack('current'), print)\n"
        "import orch_test_greeter, packaging; print(orch_test_greeter.__file__, packaging.__version__)\n"
    )
    done = subprocess.run([program, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    notice, result = done.stdout.splitlines()
    assert notice == "installing the packages of needs.txt"
    assert result.startswith(str(tmp_path / "venv"))
    assert not result.endswith("99.0"), "a package of the environment was replaced"


def make_environment(folder: Path) -> tuple[str, dict[str, str]]:
    """Make an environment that also finds the packages of this one and orch, and variables with an empty cache."""
    venv.create(folder / "venv")
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    # addsitedir also reads the .pth files there, such as that of an editable installation.
    (site / "tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    variables = {**index_variables(folder / "index"), "XDG_CACHE_HOME": str(folder / "cache")}
    return str(folder / "venv/bin/python"), {**os.environ, **variables}


def test_only_the_cpu_build_of_an_index_counts(index: Index) -> None:
    assert setup.has_torch(index, f"{VERSION}+cpu", print)
    assert not setup.has_torch(index, VERSION, print), "another build is larger"


def test_index_that_does_not_respond_is_skipped_after_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        assert not setup.has_torch(make_index(f"http://127.0.0.1:{silent.getsockname()[1]}"), VERSION, print)
        assert time.monotonic() - start < setup.QUERY_SECONDS + 2
